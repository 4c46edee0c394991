// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Collects the results of a command and prints them.

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
    /// Creates a failure of gctctl itself.
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            causes: Vec::new(),
        }
    }

    /// Puts a text in front of the message.
    pub(crate) fn before(mut self, text: &str) -> Self {
        self.message.insert_str(0, text);
        self
    }

    /// Prints the failure to standard error.
    pub(crate) fn print(&self) {
        let causes: Vec<String> = self
            .causes
            .iter()
            .map(|cause| format!("\n  because: {cause}"))
            .collect();
        // A failure to print it cannot be reported anywhere.
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

/// The results of a command.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The text for people.
    pub(crate) text: String,
    /// The JSON object for programs.
    pub(crate) json: Value,
    /// The failures, in order.
    pub(crate) failures: Vec<Failure>,
}

impl Outcome {
    /// Returns the outcome of a command that failed without results.
    pub(crate) fn failed(failure: impl Into<Failure>) -> Self {
        Self {
            failures: vec![failure.into()],
            ..Self::default()
        }
    }

    /// Returns the outcome of a command that has printed its results itself.
    pub(crate) fn silent() -> Self {
        Self::default()
    }

    /// Prints the results. Returns the exit code of the first failure.
    pub(crate) fn print(mut self, as_json: bool) -> ExitCode {
        let is_silent = self.json.is_null() && self.failures.is_empty();
        let text = if is_silent {
            String::new()
        } else if as_json {
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
        // A closed pipe is no failure of gctctl.
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
