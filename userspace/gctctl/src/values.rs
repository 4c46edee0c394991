// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Formats the contents of files for tables and for JSON.

use gct_client::{Content, Error};
use gct_core::error::Error as CoreError;
use serde_json::{Map, Value};

/// A file's content, or why it has none.
#[derive(Debug)]
pub(crate) enum Shown {
    /// The content.
    Content(Content),
    /// This GPU or mode does not support the file.
    Unsupported,
    /// The driver has not reported the value yet.
    Unknown,
}

impl Shown {
    /// Converts the result of a read. Errors other than the two states stay errors.
    pub(crate) fn new(read: Result<Content, Error>) -> Result<Self, Error> {
        match read {
            Ok(content) => Ok(Self::Content(content)),
            Err(error) => match error.core() {
                Some(CoreError::Unsupported) => Ok(Self::Unsupported),
                Some(CoreError::Unknown) => Ok(Self::Unknown),
                _ => Err(error),
            },
        }
    }

    /// Returns the text for a table.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Content(content) => content.to_string(),
            Self::Unsupported => "(unsupported)".to_owned(),
            Self::Unknown => "(unknown)".to_owned(),
        }
    }

    /// Returns the JSON value; null without content.
    pub(crate) fn json(&self) -> Value {
        match self {
            Self::Content(content) => json(content),
            Self::Unsupported | Self::Unknown => Value::Null,
        }
    }
}

/// Converts a content to JSON.
///
/// | content | JSON |
/// |---|---|
/// | one number | number |
/// | `KEY VALUE` lines | object |
/// | words, pids | array |
/// | no cgroup | null |
/// | anything else | the text of the file |
pub(crate) fn json(content: &Content) -> Value {
    match content {
        Content::Stat(lines) => lines
            .iter()
            .map(|(key, value)| (key.clone(), Value::from(*value)))
            .collect::<Map<_, _>>()
            .into(),
        Content::Words(words) => words.clone().into(),
        Content::Pids(pids) => pids.clone().into(),
        Content::Cgroup(path) => path.clone().into(),
        Content::Value(_) | Content::Line(_) | Content::CpuList(_) => {
            let text = content.to_string();
            text.parse::<u64>()
                .map_or_else(|_| text.into(), Value::from)
        }
    }
}
