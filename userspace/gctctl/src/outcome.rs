// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a command has to say, and how it is said.

use std::error::Error as _;
use std::io::{self, Write};
use std::process::ExitCode;

use gct_client::{Error, Kind};
use serde_json::{json, Value};

/// A failure with its exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    message: String,
    causes: Vec<String>,
}

impl Failure {
    /// A failure of gctctl itself.
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            causes: Vec::new(),
        }
    }

    /// Tells people of it.
    pub(crate) fn print(&self) {
        let causes: Vec<String> = self
            .causes
            .iter()
            .map(|cause| format!("\n  because: {cause}"))
            .collect();
        // Nothing can be done when stderr does not take it.
        let _ = writeln!(io::stderr(), "gctctl: {}{}", self.message, causes.concat());
    }

    fn json(&self) -> Value {
        json!({ "code": self.code, "message": self.message, "causes": self.causes })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            Kind::Failure => 1,
            Kind::Refused => 3,
            Kind::NotFound => 4,
            Kind::Unsupported => 5,
            Kind::Mismatch => 6,
            Kind::Unavailable => 7,
        };
        let mut causes = Vec::new();
        let mut source = error.source();
        while let Some(cause) = source {
            causes.push(cause.to_string());
            source = cause.source();
        }
        Self {
            code,
            message: error.to_string(),
            causes,
        }
    }
}

/// What a command found and did.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// For people.
    pub(crate) text: String,
    /// For programs: an object.
    pub(crate) json: Value,
    /// What failed, in order.
    pub(crate) failures: Vec<Failure>,
}

impl Outcome {
    /// A command that failed before it had anything to say.
    pub(crate) fn failed(failure: impl Into<Failure>) -> Self {
        Self {
            failures: vec![failure.into()],
            ..Self::default()
        }
    }

    /// Prints it and makes the exit code of the first failure.
    pub(crate) fn print(mut self, as_json: bool) -> ExitCode {
        let text = if as_json {
            let errors: Vec<Value> = self.failures.iter().map(Failure::json).collect();
            if self.json.is_null() {
                self.json = json!({});
            }
            if let Some(object) = self.json.as_object_mut().filter(|_| !errors.is_empty()) {
                object.insert("errors".to_owned(), errors.into());
            }
            format!("{:#}\n", self.json)
        } else {
            self.text
        };
        // A reader that went away is not our failure.
        let printed = io::stdout().write_all(text.as_bytes());
        let lost = printed.is_err_and(|error| error.kind() != io::ErrorKind::BrokenPipe);
        for failure in &self.failures {
            failure.print();
        }
        match self.failures.first() {
            Some(failure) => ExitCode::from(failure.code),
            None if lost => ExitCode::FAILURE,
            None => ExitCode::SUCCESS,
        }
    }
}
