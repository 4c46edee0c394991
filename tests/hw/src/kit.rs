// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Runs the programs of the kit.

use anyhow::{bail, ensure, Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Maximum run time of a child beyond its measurement.
const PATIENCE: Duration = Duration::from_secs(60);

/// The folder of the programs: beside this one, unless another is given.
#[derive(Clone, Debug)]
pub struct Kit {
    folder: PathBuf,
}

/// The environment of a child: variables, preload and wrapper.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunEnv {
    preload: bool,
    variables: Vec<(String, String)>,
    behind: Vec<String>,
}

impl RunEnv {
    /// Returns the environment of the stock driver.
    pub fn native() -> Self {
        Self::default()
    }

    /// Returns the environment of the user-space mode, without limits.
    pub fn gctgroup() -> Self {
        Self {
            preload: true,
            ..Self::default()
        }
    }

    /// Prefixes the command with another program, which starts it.
    #[must_use]
    pub fn behind(mut self, words: Vec<String>) -> Self {
        self.behind = words;
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.variables.push((name.into(), value.to_string()));
        self
    }
}

/// A running child.
#[derive(Debug)]
pub struct Running {
    child: Child,
    what: String,
}

impl Kit {
    /// Uses the programs in `folder`.
    ///
    /// # Errors
    ///
    /// If a program is missing.
    pub fn new(folder: Option<PathBuf>) -> Result<Self> {
        let folder = match folder {
            Some(folder) => folder,
            None => {
                let me = std::env::current_exe().context("where is this program?")?;
                me.parent().context("it lies in a folder")?.into()
            }
        };
        // `LD_PRELOAD`, and children that change their folder, need an absolute path.
        let folder = folder
            .canonicalize()
            .context("the folder of the programs")?;
        for file in ["gct-load", "libgct_preload.so"] {
            ensure!(folder.join(file).exists(), "{file} is not in {folder:?}");
        }
        Ok(Self { folder })
    }

    /// Returns the path of a file of the kit.
    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    /// Returns a command in an environment.
    pub fn command(&self, program: &Path, env: &RunEnv) -> Command {
        let mut command = match env.behind.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.envs(env.variables.iter().map(|(k, v)| (k, v)));
        if env.preload {
            command.env("LD_PRELOAD", self.path("libgct_preload.so"));
        }
        command
    }

    /// Starts `gct-load` with arguments separated by blanks.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(&self, env: &RunEnv, arguments: &str) -> Result<Running> {
        let mut command = self.command(&self.path("gct-load"), env);
        command.args(arguments.split_whitespace());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().context("gct-load cannot be started")?;
        Ok(Running {
            child,
            what: arguments.into(),
        })
    }

    /// Runs `gct-load` and returns its line.
    ///
    /// # Errors
    ///
    /// If it fails, or does not end.
    pub fn run(&self, env: &RunEnv, arguments: &str) -> Result<String> {
        self.start(env, arguments)?.line()
    }

    /// Runs as [`Kit::run`] does, and parses the line as JSON.
    ///
    /// # Errors
    ///
    /// As there, and if the line is not JSON.
    pub fn json(&self, env: &RunEnv, arguments: &str) -> Result<serde_json::Value> {
        parse(&self.run(env, arguments)?)
    }
}

/// Parses one line of JSON.
///
/// # Errors
///
/// If it is not JSON.
pub fn parse(line: &str) -> Result<serde_json::Value> {
    serde_json::from_str(line).with_context(|| format!("'{line}' is no JSON"))
}

/// Returns a number of a line of JSON.
///
/// # Errors
///
/// If it is missing.
pub fn number(line: &serde_json::Value, key: &str) -> Result<f64> {
    line.get(key)
        .and_then(serde_json::Value::as_f64)
        .with_context(|| format!("no number '{key}' in {line}"))
}

impl Running {
    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether the child has exited.
    ///
    /// # Errors
    ///
    /// If the kernel does not say.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Kills the child, as `kill -9` does.
    ///
    /// # Errors
    ///
    /// If it has already exited.
    pub fn kill(mut self) -> Result<()> {
        ensure!(
            self.child.try_wait()?.is_none(),
            "gct-load {} has ended already",
            self.what
        );
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits until the child exits, and returns its output.
    ///
    /// # Errors
    ///
    /// If it fails, or does not end.
    pub fn line(mut self) -> Result<String> {
        let start = Instant::now();
        while self.child.try_wait()?.is_none() {
            if start.elapsed() > PATIENCE {
                self.child.kill()?;
                self.child.wait()?;
                bail!("gct-load {} did not end", self.what);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = self.child.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "gct-load {} failed: {} {} {}",
            self.what,
            output.status,
            text.trim(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(text.trim().into())
    }
}

/// Returns the Unix time after `wait`, in seconds, for programs that measure at the same time.
pub fn moment_in(wait: Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    format!("{:.3}", (now.unwrap_or_default() + wait).as_secs_f64())
}

/// Median, minimum and maximum of some numbers.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The minimum.
    pub least: f64,
    /// The maximum.
    pub most: f64,
}

impl Spread {
    /// Computes the spread of at least one number.
    pub fn of(numbers: &[f64]) -> Option<Self> {
        let mut sorted = numbers.to_vec();
        sorted.sort_by(f64::total_cmp);
        let upper = *sorted.get(sorted.len() / 2)?;
        let lower = *sorted.get(sorted.len().checked_sub(1)? / 2)?;
        Some(Self {
            median: f64::midpoint(lower, upper),
            least: *sorted.first()?,
            most: *sorted.last()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_of_numbers() {
        let spread = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!((spread.least, spread.median, spread.most), (1.0, 2.0, 3.0));
        assert!((Spread::of(&[4.0, 1.0]).unwrap().median - 2.5).abs() < 1e-9);
        assert!(Spread::of(&[]).is_none());
    }

    #[test]
    fn numbers_are_found_or_missed() {
        let line = parse("{\"p50_us\": 3.5}").unwrap();
        assert!((number(&line, "p50_us").unwrap() - 3.5).abs() < 1e-9);
        assert!(number(&line, "p99_us").is_err());
        assert!(parse("gct-load: no GPU").is_err());
    }
}
