// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The tables of `gctgroup-docs/interface.md` are those of the code.
//!
//! `GCT_BLESS=1 cargo test -p gct-core --test interface_doc` rewrites them.

use gct_core::error::Error;
use gct_core::iface::files::{self, Entry, Place};
use gct_core::iface::keys;
use std::fmt::Write;
use std::path::Path;

const DOC: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../gctgroup-docs/interface.md"
);

fn or_none(text: &str) -> String {
    match text {
        "" => String::new(),
        text => format!("`{text}`"),
    }
}

fn row(entry: &Entry) -> String {
    let errors: Vec<_> = entry.errors.iter().map(|error| error.symbol()).collect();
    format!(
        "| {} | {} | {:?} | {} | {} | {} | {} | {} |\n",
        entry.name,
        entry.mode.word(),
        entry.format,
        or_none(entry.default),
        entry.range,
        entry.unit,
        errors.join(" "),
        entry.doc,
    )
}

fn files_of(place: Place) -> String {
    let mut table = String::from(
        "| file | mode | form | default | range | unit | errors | meaning |\n|---|---|---|---|---|---|---|---|\n",
    );
    files::of(place).for_each(|entry| table += &row(entry));
    table
}

fn keys() -> String {
    let mut table = String::from("| file | key | counts |\n|---|---|---|\n");
    for key in keys::all() {
        let name = files::entry(key.file).name;
        writeln!(table, "| {name} | {} | {} |", key.key, key.doc).unwrap();
    }
    table
}

fn errors() -> String {
    let mut table = String::from("| errno | | meaning |\n|---|---|---|\n");
    for error in Error::ALL {
        writeln!(
            table,
            "| {} | {} | {} |",
            error.symbol(),
            error.errno(),
            error.meaning()
        )
        .unwrap();
    }
    table
}

/// Returns `text` with `table` between the marks of `name`.
fn with_table(text: &str, name: &str, table: &str) -> String {
    let (begin, end) = (
        format!("<!-- {name}: begin -->\n"),
        format!("<!-- {name}: end -->"),
    );
    let (head, rest) = text
        .split_once(&begin)
        .unwrap_or_else(|| panic!("no {begin}"));
    let (_, tail) = rest.split_once(&end).unwrap_or_else(|| panic!("no {end}"));
    format!("{head}{begin}{table}{end}{tail}")
}

#[test]
fn tables_are_those_of_the_code() {
    let text = std::fs::read_to_string(Path::new(DOC)).unwrap();
    let mut expected = text.clone();
    for (name, table) in [
        ("root files", files_of(Place::Root)),
        ("gpu files", files_of(Place::Gpu)),
        ("group files", files_of(Place::Group)),
        ("pool files", files_of(Place::Pool)),
        ("keys", keys()),
        ("errors", errors()),
    ] {
        expected = with_table(&expected, name, &table);
    }
    if std::env::var_os("GCT_BLESS").is_some() {
        std::fs::write(Path::new(DOC), &expected).unwrap();
    }
    assert!(
        text == expected,
        "interface.md differs from iface::files; see the head of this test"
    );
}
