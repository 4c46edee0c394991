// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tells work that the GPU did wrong from work that it could not do.

use anyhow::Error;
use cudarc::driver::sys::CUresult;
use cudarc::driver::DriverError;
use std::fmt;
use std::process::ExitCode;

/// Exit code of wrong work. `gctctl selftest` stores that, and nothing of other failures.
const WRONG: u8 = 3;

/// What was wrong with work that the GPU did.
#[derive(Debug)]
pub(crate) struct Wrong(String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

impl Wrong {
    /// Says what was wrong.
    pub(crate) fn new(what: String) -> Self {
        Self(what)
    }
}

/// Fails with [`Wrong`] unless the work is right.
pub(crate) fn right(is_right: bool, what: impl FnOnce() -> String) -> Result<(), Wrong> {
    match is_right {
        true => Ok(()),
        false => Err(Wrong(what())),
    }
}

/// Returns the exit code for an error. A launch that faults is wrong: a right one never does.
pub(crate) fn exit_code(error: &Error) -> ExitCode {
    let faulted = |DriverError(code): &DriverError| {
        matches!(
            code,
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
                | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
                | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
                | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
                | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
                | CUresult::CUDA_ERROR_INVALID_PC
                | CUresult::CUDA_ERROR_LAUNCH_FAILED
        )
    };
    match error.is::<Wrong>() || error.downcast_ref().is_some_and(faulted) {
        true => ExitCode::from(WRONG),
        false => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_wrong_work_has_the_code_of_wrong_work() {
        let code = |error: Error| format!("{:?}", exit_code(&error));
        let (wrong, failed) = (
            format!("{:?}", ExitCode::from(WRONG)),
            format!("{:?}", ExitCode::FAILURE),
        );
        assert_ne!(wrong, failed);
        let cuda = |result| Error::from(DriverError(result)).context("a round");
        assert_eq!(code(cuda(CUresult::CUDA_ERROR_OUT_OF_MEMORY)), failed);
        assert_eq!(code(cuda(CUresult::CUDA_ERROR_LAUNCH_FAILED)), wrong);
        assert_eq!(code(Error::msg("--streams must be at least 1")), failed);
        let some = right(false, || "some blocks".to_owned()).unwrap_err();
        assert_eq!(some.to_string(), "some blocks");
        assert_eq!(code(some.into()), wrong);
    }
}
