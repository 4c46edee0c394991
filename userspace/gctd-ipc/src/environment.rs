// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reads the environment of programs that believe it.
//!
//! Where `/etc/ld.so.preload` names the library, the loader loads it into setuid programs, too.
//! Their environment is that of whoever starts them, and they have more rights.

use std::env;
use std::ffi::OsString;

/// Returns a variable of the environment. A program with more rights than whoever started it has
/// none: one that is setuid, setgid or has capabilities of its file.
pub fn variable(name: &str) -> Option<OsString> {
    // SAFETY: it reads a word that the kernel has written before the program began.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    match is_secure {
        true => None,
        false => env::var_os(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{geteuid, Uid};
    use std::fs;
    use std::os::unix::fs::{chown, PermissionsExt};
    use std::path::Path;
    use std::process::Command;

    const NAME: &str = "GCTGROUP_OF_A_TEST";
    const OTHER: u32 = 65534;

    /// The test below executes it, as a program of another user.
    #[test]
    fn says_what_it_finds() {
        let is_other = geteuid() == Uid::from_raw(OTHER);
        println!("other {is_other}, finds {:?}", variable(NAME));
    }

    #[test]
    fn a_setuid_program_believes_no_environment() {
        if !geteuid().is_root() {
            eprintln!("skipped: only root can make a program of another user");
            return;
        }
        let says = |program: &Path| {
            let mut command = Command::new(program);
            command.args(["--exact", "environment::tests::says_what_it_finds"]);
            let said = command.arg("--nocapture").env(NAME, "x").output().unwrap();
            String::from_utf8(said.stdout).unwrap()
        };
        let own = env::current_exe().unwrap();
        let finds = says(&own);
        assert!(finds.contains("other false, finds Some(\"x\")"), "{finds}");
        let setuid = own.with_extension("setuid");
        fs::copy(&own, &setuid).unwrap();
        chown(&setuid, Some(OTHER), None).unwrap();
        fs::set_permissions(&setuid, fs::Permissions::from_mode(0o4755)).unwrap();
        let finds = says(&setuid);
        fs::remove_file(&setuid).unwrap();
        if finds.contains("other false") {
            eprintln!("skipped: the file system takes no rights from files");
            return;
        }
        assert!(finds.contains("other true, finds None"), "{finds}");
    }
}
