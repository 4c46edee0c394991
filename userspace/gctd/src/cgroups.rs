// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Says which cgroups count for a process: its own, and each in which that lies.
//!
//! A container can make cgroups below its own, of any number and depth. So whatever cgroups divide
//! is divided at each cgroup among those directly in it, and what lies deeper than [`DEPTH_MAX`]
//! is not divided further.

/// More than runtimes nest: a container of a pod of a Kubernetes in a container has seven.
const DEPTH_MAX: usize = 8;

/// Returns the cgroup that counts for a process: its own, or the slice of its user, who can make
/// more of them below. It is empty at the root, where processes are that nothing has divided.
pub(crate) fn counted(cgroup: &[u8]) -> &[u8] {
    const USERS: &[u8] = b"/user.slice/";
    match cgroup.strip_prefix(USERS) {
        _ if cgroup == b"/" => b"",
        Some(_) => around(cgroup).nth(1).unwrap_or(cgroup),
        None => around(cgroup).last().unwrap_or(cgroup),
    }
}

/// Returns the cgroups in which a cgroup lies, from the highest one on, and itself.
pub(crate) fn around(cgroup: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = (1..=cgroup.len()).filter(|end| matches!(cgroup.get(*end), None | Some(b'/')));
    ends.filter_map(|end| cgroup.get(..end)).take(DEPTH_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_lies_in_those_above() {
        let around = |cgroup: &'static str| -> Vec<_> { around(cgroup.as_bytes()).collect() };
        assert_eq!(around("/a/bc/d"), [&b"/a"[..], b"/a/bc", b"/a/bc/d"]);
        assert!(around("").is_empty());
        assert_eq!(
            around("/1/2/3/4/5/6/7/8/9/10").last(),
            Some(&&b"/1/2/3/4/5/6/7/8"[..])
        );
    }

    #[test]
    fn slices_of_users_count_as_one_cgroup() {
        for (cgroup, expected) in [
            ("/", ""),
            ("", ""),
            ("/user.slice", "/user.slice"),
            ("/user.slice/user-7.slice", "/user.slice/user-7.slice"),
            ("/user.slice/user-7.slice/a/b", "/user.slice/user-7.slice"),
            ("/user.slices/user-7.slice/a", "/user.slices/user-7.slice/a"),
            ("/1/2/3/4/5/6/7/8/9", "/1/2/3/4/5/6/7/8"),
        ] {
            assert_eq!(counted(cgroup.as_bytes()), expected.as_bytes(), "{cgroup}");
        }
    }
}
