// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The programs, and how they are run.

use anyhow::{bail, ensure, Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a child may run beyond what it measures.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the programs lie: beside this one, unless another folder is given.
#[derive(Clone, Debug)]
pub struct Kit {
    folder: PathBuf,
}

/// The environment of a child: variables, preload and wrapper.
#[derive(Clone, Debug, Default)]
pub struct RunEnv {
    preload: bool,
    variables: Vec<(String, String)>,
    behind: Vec<String>,
}

impl RunEnv {
    /// The stock driver, nothing else.
    pub fn native() -> Self {
        Self::default()
    }

    /// The user-space mode, without limits.
    pub fn gctgroup() -> Self {
        Self {
            preload: true,
            ..Self::default()
        }
    }

    /// The same as the arguments of another program, which starts it.
    #[must_use]
    pub fn behind(mut self, words: Vec<String>) -> Self {
        self.behind = words;
        self
    }

    /// The same with a variable of the environment.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.variables.push((name.into(), value.to_string()));
        self
    }
}

/// A child that runs.
#[derive(Debug)]
pub struct Running {
    child: Child,
    what: String,
}

impl Kit {
    /// The programs in `folder`.
    ///
    /// # Errors
    ///
    /// One of them is not there.
    pub fn new(folder: Option<PathBuf>) -> Result<Self> {
        let folder = match folder {
            Some(folder) => folder,
            None => {
                let me = std::env::current_exe().context("where is this program?")?;
                me.parent().context("it lies in a folder")?.into()
            }
        };
        // `LD_PRELOAD` and children that change their folder need a whole path.
        let folder = folder
            .canonicalize()
            .context("the folder of the programs")?;
        for file in ["gct-load", "libgct_preload.so"] {
            ensure!(folder.join(file).exists(), "{file} is not in {folder:?}");
        }
        Ok(Self { folder })
    }

    /// A file of the kit.
    pub fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    /// A command under `under`.
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

    /// Starts `gct-load` with arguments that blanks separate.
    ///
    /// # Errors
    ///
    /// It cannot be started.
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
    /// It failed, or did not end.
    pub fn run(&self, env: &RunEnv, arguments: &str) -> Result<String> {
        self.start(env, arguments)?.line()
    }

    /// As [`Kit::run`], for a line of JSON.
    ///
    /// # Errors
    ///
    /// As there, and for a line that is no JSON.
    pub fn json(&self, env: &RunEnv, arguments: &str) -> Result<serde_json::Value> {
        parse(&self.run(env, arguments)?)
    }
}

/// Reads one line of JSON.
///
/// # Errors
///
/// It is none.
pub fn parse(line: &str) -> Result<serde_json::Value> {
    serde_json::from_str(line).with_context(|| format!("'{line}' is no JSON"))
}

/// A number in a line of JSON.
///
/// # Errors
///
/// It is not there.
pub fn number(line: &serde_json::Value, key: &str) -> Result<f64> {
    line.get(key)
        .and_then(serde_json::Value::as_f64)
        .with_context(|| format!("no number '{key}' in {line}"))
}

impl Running {
    /// The process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it at once, as `kill -9` does.
    ///
    /// # Errors
    ///
    /// It has ended already.
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

    /// Waits for its end and returns what it printed.
    ///
    /// # Errors
    ///
    /// It failed, or does not end.
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

/// Unix time after `wait`, in seconds, for programs that are to measure at the same time.
pub fn moment_in(wait: Duration) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    format!("{:.3}", (now.unwrap_or_default() + wait).as_secs_f64())
}

/// The middle and the ends of some numbers.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

impl Spread {
    /// Of at least one number.
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
