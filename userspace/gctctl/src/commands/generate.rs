// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes shell completions and manual pages from the command line's definition (`completions`,
//! `man`).

use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;
use serde_json::json;

use crate::cli::Cli;
use crate::outcome::{Failure, Outcome};

pub(crate) fn completions(shell: Shell) -> Outcome {
    let mut bytes = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "gctctl", &mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Outcome {
        json: json!({ "shell": shell.to_string(), "completions": text }),
        text,
        failures: Vec::new(),
    }
}

pub(crate) fn man(directory: &Path) -> Outcome {
    if let Err(error) = clap_mangen::generate_to(Cli::command(), directory) {
        let message = format!(
            "The pages cannot be written to {}: {error}. Name a directory that exists.",
            directory.display()
        );
        return Outcome::failed(Failure::new(1, message));
    }
    Outcome {
        text: format!("man {}/gctctl.1\n", directory.display()),
        json: json!({ "directory": directory }),
        failures: Vec::new(),
    }
}
