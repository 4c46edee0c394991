// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Opens the GPU when it is told to, launches, and says what the library has done.

use crate::{fake, helpers, open};

/// Opens the GPU at the first line of the input, and launches three times at each line.
pub(crate) fn run() {
    let mut lines = std::io::stdin().lines();
    lines.next();
    assert_eq!(fake(c"fake_open_device"), 0);
    assert_eq!(fake(c"fake_open_group"), 0);
    open();
    let mut put = 0;
    loop {
        for _ in 0..3 {
            put = fake(c"fake_launch");
        }
        let is_seen = fake(c"fake_put") == put;
        let threads = helpers("Name").join(" ");
        println!("{is_seen} {} {threads}", has_own_rings());
        if lines.next().is_none() {
            return;
        }
    }
}

/// Returns whether the driver's memory is where the program has mapped its rings.
fn has_own_rings() -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut maps = maps.lines();
    maps.any(|line| line.starts_with("200600000-") && line.contains("/memfd:fake"))
}
