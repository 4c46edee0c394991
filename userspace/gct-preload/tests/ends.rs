// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Ends while the GPU has work of it.

use crate::{fake, open};
use std::io::Write;
use std::time::Duration;

/// Launches, and ends: by `exit`, in a channel group of its `own`, or by a signal that it does not
/// handle (`term`), which may come `inside` the library. The GPU reads the launch a moment later,
/// and a thread says so if it still can. That thread then launches once more where a signal ends
/// the program.
pub(crate) fn run(how: &str) {
    assert_eq!(fake(c"fake_open_device"), 0);
    if how == "own" {
        assert_eq!(fake(c"fake_open_group"), 0);
    }
    open();
    if how == "inside" {
        inside();
    }
    let put = fake(c"fake_launch");
    while fake(c"fake_put") != put {
        std::thread::sleep(Duration::from_millis(1));
    }
    let is_ended = how == "term";
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(1));
        print!("read");
        std::io::stdout().flush().unwrap();
        fake(c"fake_read");
        if is_ended {
            fake(c"fake_launch");
        }
    });
    if is_ended {
        terminate();
    }
}

/// Gets a signal while the library changes what it knows of channels.
fn inside() -> ! {
    // SAFETY: ends this program if nothing else does.
    unsafe { libc::alarm(20) };
    fake(c"fake_terminate");
    assert_eq!(fake(c"fake_second"), 0);
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

fn terminate() -> ! {
    for _ in 0..2 {
        // SAFETY: asks for an action, and sets the default one.
        let (ret, old) = unsafe {
            let mut old: libc::sigaction = core::mem::zeroed();
            old.sa_sigaction = libc::SIG_IGN;
            let ret = libc::sigaction(libc::SIGTERM, core::ptr::null(), &mut old);
            (ret, old)
        };
        assert_eq!((ret, old.sa_sigaction), (0, libc::SIG_DFL));
        // SAFETY: sets the default action.
        let before = unsafe { libc::signal(libc::SIGTERM, libc::SIG_DFL) };
        assert_eq!(before, libc::SIG_DFL);
    }
    // SAFETY: ends this process.
    unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}
