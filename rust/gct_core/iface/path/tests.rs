// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use proptest::prelude::*;
use std::format;
use std::string::String;
use std::vec::Vec;

fn shown(dir: &Dir) -> String {
    let owner = |owner: &OwnerName| match owner {
        OwnerName::Group(name) => String::from(name.as_str()),
        OwnerName::Proc(pid) => format!("{pid}"),
    };
    match dir {
        Dir::Root => String::new(),
        Dir::Gpus => String::from("gpus"),
        Dir::Gpu(gpu) => format!("gpus/{}", gpu.0),
        Dir::Owner(name) => owner(name),
        Dir::Pool(name, gpu) => format!("{}/{}", owner(name), gpu.0),
    }
}

#[test]
fn each_file_of_each_directory_is_found() {
    let web = OwnerName::Group(Name::new("web").unwrap());
    for dir in [
        Dir::Root,
        Dir::Gpus,
        Dir::Gpu(GpuIndex(7)),
        Dir::Owner(web),
        Dir::Owner(OwnerName::Proc(4711)),
        Dir::Pool(web, GpuIndex(0)),
        Dir::Pool(OwnerName::Proc(1), GpuIndex(31)),
    ] {
        let path = shown(&dir);
        assert_eq!(super::dir(path.as_bytes()), Ok(dir));
        for entry in dir.place().into_iter().flat_map(files::of) {
            let slash = if path.is_empty() { "" } else { "/" };
            let path = format!("{path}{slash}{}", entry.name);
            assert!(path.len() <= limits::PATH_LEN_MAX);
            assert_eq!(file(path.as_bytes()), Ok((dir, entry)));
        }
    }
}

#[test]
fn the_longest_path_fits() {
    let longest = files::FILES.iter().map(|entry| entry.name.len()).max();
    let all = limits::NAME_LEN_MAX + "/31/".len() + longest.unwrap();
    assert!(all <= limits::PATH_LEN_MAX);
}

#[test]
fn other_paths_are_refused() {
    for path in [
        "/",
        "//",
        "/version",
        "version/",
        "gpus/",
        "/gpus",
        "gpus//0",
        "gpus/00",
        "gpus/-1",
        "gpus/256",
        "gpus/0/0",
        "0",
        "007",
        "4294967296",
        "web//0",
        "web/0/0",
        "web/0/web",
        "web/gpus",
        ".",
        "..",
        "web/..",
        "web/../version",
        "a b",
        "web\0",
        "\u{e9}",
        "1x",
        "web/group.procs/",
        "1/group.procs",
        "web/version",
        "control/0",
    ] {
        assert_eq!(file(path.as_bytes()), Err(Error::NotFound), "{path}");
        assert_eq!(dir(path.as_bytes()), Err(Error::NotFound), "{path}");
    }
    assert_eq!(dir(&[b'a'; 4096]), Err(Error::NotFound));
    assert_eq!(file(&[b'/'; 4096]), Err(Error::NotFound));
}

proptest! {
    /// Checks that whatever parses prints as it was written: no two paths name one directory.
    #[test]
    fn a_path_is_the_only_one_of_its_directory(
        parts in prop::collection::vec("[a-z0-9._/-]{0,6}|gpus|0|1|31|4711|\\PC{0,4}", 0..5),
    ) {
        let path = parts.join("/");
        if let Ok(dir) = dir(path.as_bytes()) {
            prop_assert_eq!(shown(&dir), path.clone());
        }
        if let Ok((dir, entry)) = file(path.as_bytes()) {
            let above = shown(&dir);
            let whole: Vec<&str> = [above.as_str(), entry.name].into_iter().filter(|part| !part.is_empty()).collect();
            prop_assert_eq!(whole.join("/"), path);
        }
    }

    #[test]
    fn any_bytes_are_parsed(path in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = (dir(&path), file(&path));
    }
}
