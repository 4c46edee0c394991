// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds the pod and the container that the kubelet's path of a cgroup names.
//!
//! ```text
//! cgroupfs  kubepods/[QOS/]podUID/ID
//! systemd   kubepods.slice/[kubepods-QOS.slice/]kubepods-[QOS-]podUID.slice/RUNTIME-ID.scope
//! ```
//!
//! Guaranteed pods have no QOS. systemd's names have `_` in place of the `-` of a UID. Version 1
//! and version 2 of cgroups have the same paths. A kubelet in a container has its own path in
//! front.

/// A pod, and one of its containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pod {
    /// The pod's UID in the API.
    pub(crate) uid: String,
    /// `guaranteed`, `burstable` or `besteffort`.
    pub(crate) qos: &'static str,
    /// The container's id in the runtime; empty for the pod's own cgroup.
    pub(crate) container: String,
}

const UID_LEN: usize = 36;
/// Length of a UID that the kubelet makes for a static pod: a hash.
const HASH_LEN: usize = 32;
const CONTAINER_LEN: usize = 64;

/// Returns the pod that a cgroup's path names.
pub(crate) fn of_cgroup(path: &str) -> Option<Pod> {
    let mut parts = path.split('/');
    let mut qos = None;
    // The part of the pod lies below the kubelet's root or names it itself.
    let (pod, rest) = loop {
        let part = parts.next()?;
        // A runtime that was told the other driver's path: `SLICE:PREFIX:CONTAINER`.
        let (slice, rest) = part.split_once(':').unwrap_or((part, ""));
        match slice {
            "kubepods" => qos = Some("guaranteed"),
            "besteffort" if qos.is_some() => qos = Some("besteffort"),
            "burstable" if qos.is_some() => qos = Some("burstable"),
            _ => {
                if let Some(found) = cgroupfs(slice, qos).or_else(|| systemd(slice)) {
                    break (found, rest);
                }
            }
        }
    };
    let container = match rest {
        "" => parts.next().and_then(container),
        rest => rest.rsplit(':').next().and_then(container),
    };
    Some(Pod {
        container: container.unwrap_or_default().to_owned(),
        ..pod
    })
}

/// Returns the pod of a directory of the cgroupfs driver.
fn cgroupfs(part: &str, qos: Option<&'static str>) -> Option<Pod> {
    let uid = part.strip_prefix("pod").filter(|uid| is_uid(uid))?;
    Some(Pod {
        uid: uid.to_owned(),
        qos: qos?,
        container: String::new(),
    })
}

/// Returns the pod of a slice of the systemd driver.
fn systemd(part: &str) -> Option<Pod> {
    let name = part.strip_suffix(".slice")?;
    // The kubelet's `--cgroup-root` is in front: `kubelet-kubepods-burstable-pod..`.
    let (_, below) = name.rsplit_once("kubepods-")?;
    let (qos, uid) = match below.split_once("-pod") {
        Some(("besteffort", uid)) => ("besteffort", uid),
        Some(("burstable", uid)) => ("burstable", uid),
        Some(_) => return None,
        None => ("guaranteed", below.strip_prefix("pod")?),
    };
    let uid = uid.replace('_', "-");
    is_uid(&uid).then_some(Pod {
        uid,
        qos,
        container: String::new(),
    })
}

/// Returns the container's id of a directory or a scope. Scopes of a runtime's helper have none.
fn container(part: &str) -> Option<&str> {
    let id = match part.strip_suffix(".scope") {
        Some(scope) => match scope.rsplit_once('-')? {
            ("crio-conmon", _) => return None,
            (_, id) => id,
        },
        None => part,
    };
    let hex = id.bytes().all(|digit| digit.is_ascii_hexdigit());
    (id.len() == CONTAINER_LEN && hex).then_some(id)
}

fn is_uid(text: &str) -> bool {
    let digits = text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
    digits && [UID_LEN, HASH_LEN].contains(&text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "8f7a2d34-5b1c-4c7e-9f0e-2a6b8d3c1e55";
    const SLICE_UID: &str = "8f7a2d34_5b1c_4c7e_9f0e_2a6b8d3c1e55";
    const HASH: &str = "dd1a4a8d2d9c5f0f2b8d2c6f4f2e8a31";
    const ID: &str = "3b5f0c1d9e8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c";

    #[track_caller]
    fn names(path: &str, uid: &str, qos: &str, container: &str) {
        let path = path
            .replace("SLICEUID", SLICE_UID)
            .replace("UID", UID)
            .replace("HASH", HASH)
            .replace("ID", ID);
        let pod = of_cgroup(&path).unwrap_or_else(|| panic!("{path}"));
        assert_eq!((pod.uid.as_str(), pod.qos), (uid, qos), "{path}");
        assert_eq!(pod.container, container, "{path}");
    }

    #[test]
    fn paths_of_the_cgroupfs_driver() {
        names("/kubepods/podUID/ID", UID, "guaranteed", ID);
        names("/kubepods/besteffort/podUID/ID", UID, "besteffort", ID);
        names("/kubepods/burstable/podUID/ID", UID, "burstable", ID);
        names("/kubepods/burstable/podHASH/ID", HASH, "burstable", ID);
        names("/kubepods/burstable/podUID", UID, "burstable", "");
        // A container that runs an init of its own below its cgroup.
        names("/kubepods/podUID/ID/init.scope", UID, "guaranteed", ID);
        // kind: the node is a container.
        names(
            "/docker/ID/kubelet/kubepods/besteffort/podUID/ID",
            UID,
            "besteffort",
            ID,
        );
    }

    #[test]
    fn paths_of_the_systemd_driver() {
        let below =
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podSLICEUID.slice";
        for scope in [
            "cri-containerd-ID.scope",
            "crio-ID.scope",
            "docker-ID.scope",
            "ID",
        ] {
            names(&format!("{below}/{scope}"), UID, "besteffort", ID);
        }
        names(below, UID, "besteffort", "");
        names(
            &format!("{below}/crio-conmon-ID.scope"),
            UID,
            "besteffort",
            "",
        );
        names(
            "/kubepods.slice/kubepods-podSLICEUID.slice/cri-containerd-ID.scope",
            UID,
            "guaranteed",
            ID,
        );
        names(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podHASH.slice/crio-ID.scope",
            HASH,
            "burstable",
            ID,
        );
        // kind on version 2: the kubelet has a slice of its own.
        names(
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/\
             kubelet-kubepods-burstable-podSLICEUID.slice/cri-containerd-ID.scope",
            UID,
            "burstable",
            ID,
        );
        // containerd with the cgroupfs driver below a kubelet with systemd's.
        names(
            "/system.slice/containerd.service/kubepods-burstable-podSLICEUID.slice:cri-containerd:ID",
            UID,
            "burstable",
            ID,
        );
    }

    #[test]
    fn other_paths_name_no_pod() {
        for path in [
            "",
            "/",
            "/user.slice/user-1000.slice/session-2.scope",
            "/system.slice/docker-ID.scope",
            "/machine.slice/libpod-ID.scope",
            "/kubepods",
            "/kubepods.slice/kubepods-burstable.slice",
            "/kubepods/besteffort",
            "/kubepods/podcast/ID",
            "/podUID/ID",
            "/besteffort/podUID/ID",
            "/kubepods.slice/kubepods-other-podSLICEUID.slice/crio-ID.scope",
            "/kubepods.slice/kubepods-pod.slice/crio-ID.scope",
            "/kubepods/pod........-5b1c-4c7e-9f0e-2a6b8d3c1e55/ID",
        ] {
            let path = path
                .replace("SLICEUID", SLICE_UID)
                .replace("UID", UID)
                .replace("ID", ID);
            assert_eq!(of_cgroup(&path), None, "{path}");
        }
    }
}
