// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Contents of files for tables and for JSON.

use gct_client::{Content, Error};
use gct_core::error::Error as CoreError;
use serde_json::{Map, Value};

/// A file as far as it could be read.
#[derive(Debug)]
pub(crate) enum Shown {
    /// What it holds.
    Content(Content),
    /// This GPU or mode does not have it.
    Unsupported,
    /// The driver has not told yet.
    Unknown,
}

impl Shown {
    /// Takes what reading said; what is no state of the file stays an error.
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

    /// For a table.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Content(content) => content.to_string(),
            Self::Unsupported => "(unsupported)".to_owned(),
            Self::Unknown => "(unknown)".to_owned(),
        }
    }

    /// For JSON: null when there is nothing to show.
    pub(crate) fn json(&self) -> Value {
        match self {
            Self::Content(content) => json(content),
            Self::Unsupported | Self::Unknown => Value::Null,
        }
    }
}

/// A number where the file shows one number, an object for `KEY VALUE` lines, a list for words and pids, null for
/// no cgroup, and else the text as the file shows it.
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
        Content::Value(_) | Content::Line(_) => {
            let text = content.to_string();
            text.parse::<u64>()
                .map_or_else(|_| text.into(), Value::from)
        }
    }
}
