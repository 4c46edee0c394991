// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `gctctl capture` handles all captures in many orders, wrapped rings and invalid files.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use common::FakeTree;
use gct_client::capture::{parse, Record};
use gct_core::submit::gpfifo::{Control, Entry, Fetch, Segment};
use serde_json::Value;

fn fixtures() -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/captures");
    let entries = fs::read_dir(directory).expect("the captures");
    let mut captures: Vec<(String, String)> = entries
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|end| end == "pbcap"))
        // The model says of it that its effects depend on the order of events.
        .filter(|path| !path.ends_with("graph_chains_first.pbcap"))
        .map(|path| {
            let name = path.file_stem().expect("a name").to_string_lossy();
            (name.into_owned(), path.display().to_string())
        })
        .collect();
    captures.sort();
    assert_eq!(captures.len(), 20);
    captures
}

fn json(tree: &FakeTree, arguments: &[&str]) -> Value {
    let ran = tree.gctctl(&[arguments, &["--json"]].concat());
    serde_json::from_str(ran.exits(0)).expect("JSON")
}

fn list<'a>(value: &'a Value, name: &str) -> &'a Vec<Value> {
    value[name]
        .as_array()
        .unwrap_or_else(|| panic!("no list {name}"))
}

/// Returns how often each block of each program ran on the model, by program, x, y and z.
fn blocks(tree: &FakeTree, file: &str) -> BTreeMap<(String, [u64; 3]), u32> {
    let report = json(tree, &["capture", "check", file]);
    let mut ran = BTreeMap::new();
    let span = |value: &Value| {
        let end = |index: usize| value[index].as_u64().expect("a number");
        end(0)..end(1)
    };
    for run in list(&report, "runs") {
        let program = run["program"].as_str().expect("a program");
        for part in list(run, "blocks") {
            for z in span(&part["z"]) {
                for y in span(&part["y"]) {
                    for x in span(&part["x"]) {
                        *ran.entry((program.to_owned(), [x, y, z])).or_insert(0) += 1;
                    }
                }
            }
        }
    }
    ran
}

/// Returns the launches that `show` finds: kind, RESUME and grid in units.
fn launches(tree: &FakeTree, file: &str) -> Vec<(String, Value, Value)> {
    let shown = json(tree, &["capture", "show", file]);
    let mut all = Vec::new();
    for entry in list(&shown, "entries") {
        assert_eq!(entry["refused"], Value::Null, "{file}");
        for found in list(entry, "launches") {
            if found["launch"].is_object() {
                let launch = &found["launch"];
                let kind = launch["kind"].as_str().expect("a kind").to_owned();
                all.push((kind, launch["resume"].clone(), launch["grid"].clone()));
            }
        }
    }
    all
}

#[test]
fn a_rewrite_is_decoded_again_and_runs_each_block_once() {
    let tree = FakeTree::new("capture-again");
    for (name, file) in fixtures() {
        let original = blocks(&tree, &file);
        let before = launches(&tree, &file).len();
        for (mask, atoms) in [("all", "2"), ("0-31", "8"), ("5,64-83", "24"), ("7", "256")] {
            let out = tree.path("out.pbcap").display().to_string();
            let options = ["--tpc-mask", mask, "--atoms", atoms, "--out", &out];
            let said = json(
                &tree,
                &[&["capture", "rewrite", &file][..], &options].concat(),
            );
            let counters = &said["counters"];
            let number = |name: &str| counters[name].as_u64().expect("a number");
            // Each split adds its atoms. The call of the tenant then schedules the join.
            let after = launches(&tree, &out);
            let added = usize::try_from(number("atoms") + number("split")).expect("a number");
            // A scan remembers the last 32 uploads of a segment, the model and the hardware all.
            if atoms != "256" {
                assert_eq!(after.len(), before + added, "{name} {mask} {atoms}");
            }
            assert_eq!(blocks(&tree, &out), original, "{name} {mask} {atoms}");
            // The report on each entry matches the file.
            let text = fs::read_to_string(&out).expect("the rewrite");
            let records = parse(&text).expect("a capture");
            for (entry, record) in list(&said, "entries").iter().zip(&records) {
                assert_eq!(entry["words_rewritten"], record.words.len(), "{name}");
            }
            // A second rewrite splits nothing, and with the same mask changes nothing.
            let twice = tree.path("twice.pbcap").display().to_string();
            let options = ["--tpc-mask", mask, "--atoms", atoms, "--out", &twice];
            let said = json(
                &tree,
                &[&["capture", "rewrite", &out][..], &options].concat(),
            );
            assert_eq!(said["counters"]["split"], 0, "{name} {mask} {atoms}");
            let again = fs::read_to_string(&twice).expect("the rewrite");
            assert_eq!(again, text, "{name} {mask} {atoms}");
        }
    }
}

/// Returns the records of a ring of `size` entries, into which a program wrote `segments` from
/// entry `first` on. Control entries carry the upper bits of addresses, as the host reads them.
fn through_a_ring(segments: &[(u64, &[u32])], size: usize, first: usize) -> Vec<Record> {
    let mut written = Vec::new();
    let mut base = 0;
    for (va, words) in segments {
        let upper = u32::try_from(va >> 40).expect("57 bits");
        if upper != base {
            base = upper;
            written.push(Entry::Control(Control::ExtendedBase(base)));
        }
        written.push(Entry::Segment(Segment {
            va: *va,
            words: u32::try_from(words.len()).expect("a segment"),
            subroutine: false,
            wait: false,
            conditional: false,
        }));
    }
    let mut ring = vec![Entry::Control(Control::Nop).encode(); size];
    for (at, entry) in written.iter().enumerate() {
        ring[(first + at) % size] = entry.encode();
    }
    let mut fetch = Fetch::new();
    let mut records = Vec::new();
    for at in 0..written.len() {
        if let Entry::Segment(segment) = fetch.decode(ring[(first + at) % size]) {
            let (va, words) = segments[records.len()];
            assert_eq!((segment.va, segment.words as usize), (va, words.len()));
            records.push(Record {
                channel: 0,
                class: 0xc86f,
                tsg_engine: 0,
                token: 0xa,
                gpu_va: segment.va,
                words: words.to_vec(),
            });
        }
    }
    records
}

#[test]
fn a_ring_that_wraps_and_addresses_of_57_bits_are_rewritten() {
    let tree = FakeTree::new("capture-ring");
    let one_launch = fixtures()
        .into_iter()
        .find(|(name, _)| name == "one_launch");
    let (_, file) = one_launch.expect("a capture of this name");
    let text = fs::read_to_string(&file).expect("a capture");
    let [record] = &parse(&text).expect("a capture")[..] else {
        panic!("one entry");
    };
    let original = blocks(&tree, &file);
    // The segment is cut in the data of the first upload, between two bursts, in front of the
    // launch's QMD, in its data and in its call. The last two cannot be changed, and nothing may be
    // lost.
    for (cut, is_split) in [
        (60, true),
        (261, true),
        (270, false),
        (377, false),
        (379, false),
    ] {
        let (head, tail) = record.words.split_at(cut);
        let high = 0x1_2345_u64 << 40 | record.gpu_va;
        let segments = [(record.gpu_va, head), (high, tail)];
        // Three entries in a ring of four, from the last but one on.
        let records = through_a_ring(&segments, 4, 2);
        let lines: Vec<String> = records.iter().map(Record::to_string).collect();
        tree.write("ring.pbcap", &format!("{}\n", lines.join("\n")));
        let made = tree.path("ring.pbcap").display().to_string();
        assert_eq!(blocks(&tree, &made), original, "{cut}");
        let shown = json(&tree, &["capture", "show", &made]);
        assert_eq!(list(&shown, "entries")[1]["gpu_va"], format!("{high:#x}"));

        let out = tree.path("out.pbcap").display().to_string();
        let options = ["--tpc-mask", "0-3", "--atoms", "5", "--out", &out];
        let said = json(
            &tree,
            &[&["capture", "rewrite", &made][..], &options].concat(),
        );
        assert_eq!(said["counters"]["split"], u64::from(is_split), "{cut}");
        assert_eq!(blocks(&tree, &out), original, "{cut}");
        let kept = parse(&fs::read_to_string(&out).expect("the rewrite")).expect("a capture");
        assert_eq!(kept[1].gpu_va, high);
        if is_split {
            let check = [
                "capture",
                "check",
                &out,
                "--original",
                &made,
                "--tpc-mask",
                "0-3",
            ];
            let ran = tree.gctctl(&check);
            assert!(ran.exits(0).contains("same as the original"), "{cut}");
        }
    }
}

#[test]
fn an_invalid_capture_is_refused_with_its_line() {
    let tree = FakeTree::new("capture-malformed");
    let head = "gp ch=0 class=c86f tsg_engine=0 token=a gpu_va=200833944";
    let good = format!("{head} words=1 : 0\n");
    let file = tree.path("bad.pbcap");
    let name = file.display().to_string();
    let bad = [
        (format!("{head} words=2 : 0"), "says 2 words but has 1"),
        (format!("{head} words=1 : 0 0"), "says 1 words but has 2"),
        (format!("{head} words=1 : 100000000"), "word 0 that is not"),
        (format!("{head} words=1 : +1"), "word 0 that is not"),
        (format!("{head} words=1 : 0x1"), "word 0 that is not"),
        (format!("{head} words=-1 : 0"), "no proper field words="),
        (format!("{head} words=+1 : 0"), "no proper field words="),
        (format!("{head} words=2097152 :"), "more words than"),
        (format!("{head} words=1"), "no proper field words="),
        (good.replace("ch=0", "ch=4294967296"), "no proper field ch="),
        (
            good.replace("class=c86f", "class=1c86f"),
            "no proper field class=",
        ),
        (good.replace("token=a ", ""), "no proper field token="),
        (
            good.replace("gpu_va=200833944", "gpu_va=g"),
            "no proper field gpu_va=",
        ),
        (good.replace("gp ", "pg "), "does not start with \"gp\""),
        ("# a comment".to_owned(), "no proper field words="),
        ("\u{1f980} :".to_owned(), "does not start with \"gp\""),
    ];
    for (line, why) in bad {
        fs::write(&file, format!("{good}\n{line}\n{good}")).expect("a file");
        for command in ["show", "check", "rewrite"] {
            let ran = tree.gctctl(&["capture", command, &name]);
            ran.exits(3);
            let said = &ran.stderr;
            assert!(
                said.contains("Line 3 of the capture") && said.contains(why),
                "{line}: {said}"
            );
        }
    }
    for bytes in [&b"\xff\xfegp"[..], b"gp\0 :\xc3"] {
        fs::write(&file, bytes).expect("a file");
        let ran = tree.gctctl(&["capture", "show", &name, "--json"]);
        assert!(ran.exits(3).contains("not text"), "{}", ran.stderr);
    }
    fs::write(&file, "\n \n").expect("a file");
    tree.gctctl(&["capture", "show", &name]).exits(0);
    // A file that cannot be read or written is a failure, not a refusal.
    tree.gctctl(&["capture", "check", &tree.path("").display().to_string()])
        .exits(1);
    fs::write(&file, &good).expect("a file");
    tree.gctctl(&["capture", "rewrite", &name, "--out", "/nonexistent/out"])
        .exits(1);
}

#[test]
fn unusual_words_are_shown_and_passed_unchanged() {
    let tree = FakeTree::new("capture-hostile");
    let head = "gp ch=3 class=c86f tsg_engine=0 token=a gpu_va=0";
    // No words; a segment that ends before a launch; an old header; a burst beyond the last word,
    // and one beyond the last method.
    for (words, refused) in [
        ("words=0 :", false),
        ("words=3 : e0000000 ffffffff 20042062", false),
        ("words=2 : 00040180 0", true),
        ("words=2 : 20042062 0", false),
        ("words=1 : 2fffe000", false),
        ("words=1 : 3fffe000", true),
    ] {
        tree.write(
            "hostile.pbcap",
            &format!("{head} {words}\n{head} {words}\n"),
        );
        let file = tree.path("hostile.pbcap").display().to_string();
        let shown = json(&tree, &["capture", "show", &file]);
        let first = &list(&shown, "entries")[0];
        assert_eq!(!first["refused"].is_null(), refused, "{words}");
        let out = tree.path("out.pbcap").display().to_string();
        let options = ["--tpc-mask", "0-3", "--atoms", "5", "--out", &out];
        json(
            &tree,
            &[&["capture", "rewrite", &file][..], &options].concat(),
        );
        let records = |name| parse(&tree.read(name)).expect("a capture");
        assert_eq!(records("out.pbcap"), records("hostile.pbcap"));
        json(&tree, &["capture", "check", &out]);
    }
}
