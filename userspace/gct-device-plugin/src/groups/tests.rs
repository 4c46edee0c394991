// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use gctd::testing::{Client, Daemon};
use std::path::PathBuf;
use std::process::{Child, Command};

const BUSY: &str = "populated 1\nfrozen 0\n";
const EMPTY: &str = "populated 0\nfrozen 0\n";

/// A daemon with two GPUs, and a machine with containers that exist as files only.
struct Machine {
    daemon: Daemon,
    places: Places,
    folder: PathBuf,
}

impl Machine {
    fn new(test: &str) -> Self {
        let daemon = Daemon::new(&format!("groups-{test}"), 2);
        let folder = daemon.directory.join("machine");
        fs::create_dir_all(folder.join("cgroups")).unwrap();
        fs::write(folder.join("cgroups/cgroup.controllers"), "pids").unwrap();
        let places = Places {
            root: PathBuf::new(),
            dir: Some(daemon.directory.clone()),
            state: folder.join("state"),
            proc: folder.join("proc"),
            cgroups: folder.join("cgroups"),
        };
        Self {
            daemon,
            places,
            folder,
        }
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Makes container number `n` of pod `pod<n>`, whose first process has not run yet.
    fn create(&self, n: u32) -> State {
        self.write(&format!("proc/{n}/cgroup"), &format!("0::{}\n", cgroup(n)));
        let stat = format!("{n} (a ) b) S{} 5000 0\n", " 0".repeat(18));
        self.write(&format!("proc/{n}/stat"), &stat);
        self.write(&format!("cgroups{}/cgroup.events", cgroup(n)), BUSY);
        state(n)
    }

    /// Takes away what the kernel has of a container.
    fn vanish(&self, n: u32) {
        fs::remove_dir_all(self.folder.join(format!("cgroups{}", cgroup(n)))).unwrap();
        fs::remove_dir_all(self.folder.join(format!("proc/{n}"))).unwrap();
    }

    fn start(&self, n: u32) -> Result<()> {
        bind(&self.places, &self.create(n), n % 2, &share("8"))
    }

    fn reconcile(&self, pods: Option<&HashSet<PodContainer>>) -> Report {
        let report = reconcile(&self.places, pods).unwrap();
        assert_eq!(report.failures, [] as [String; 0]);
        report
    }

    fn client(&self) -> Client {
        self.daemon.client()
    }

    /// Returns the groups of the tree.
    fn groups(&self) -> Vec<String> {
        let names = self.client().list("").unwrap();
        let groups = names.iter().filter_map(|name| name.strip_suffix('/'));
        groups
            .filter(|name| *name != "gpus")
            .map(str::to_owned)
            .collect()
    }

    fn records(&self) -> usize {
        Records::lock(&self.places.state)
            .unwrap()
            .all()
            .unwrap()
            .len()
    }

    fn read(&self, path: &str) -> String {
        self.client().read(path).unwrap().trim_end().to_owned()
    }
}

fn cgroup(n: u32) -> String {
    format!("/kubepods/pod{n}/c{n}")
}

fn group(n: u32) -> String {
    format!("k8s_default_pod{n}_main_c{n}")
}

fn pod(n: u32) -> PodContainer {
    PodContainer {
        namespace: "default".to_owned(),
        pod: format!("pod{n}"),
        container: "main".to_owned(),
    }
}

fn state(n: u32) -> State {
    let pod = pod(n);
    let annotations = [
        ("io.kubernetes.cri.sandbox-namespace", pod.namespace),
        ("io.kubernetes.cri.sandbox-name", pod.pod),
        ("io.kubernetes.cri.container-name", pod.container),
    ];
    State {
        id: format!("c{n}"),
        bundle: "/nowhere".into(),
        pid: n,
        annotations: annotations
            .map(|(key, value)| (key.to_owned(), value))
            .into(),
    }
}

fn share(quota: &str) -> Share {
    let limits = [("tpc.mask", "0-3,9-16,18-25,27-34"), ("tpc.quota", quota)];
    Share {
        profile: "small".to_owned(),
        limits: limits
            .map(|(file, value)| (file.to_owned(), value.to_owned()))
            .into(),
        mps: false,
        claim: None,
        slots: None,
    }
}

#[test]
fn a_container_has_its_group_and_limits_before_it_runs() {
    let machine = Machine::new("bind");
    machine.start(10).unwrap();
    let group = group(10);
    assert_eq!(machine.groups(), std::slice::from_ref(&group));
    assert_eq!(machine.read(&format!("{group}/group.cgroup")), cgroup(10));
    assert_eq!(machine.read(&format!("{group}/0/tpc.quota")), "8");
    assert_eq!(machine.read(&format!("{group}/1/tpc.quota")), "none");
    // A runtime that injects the device twice calls twice.
    bind(&machine.places, &state(10), 0, &share("8")).unwrap();
    // A share of the other GPU joins it, another share of this one does not.
    bind(&machine.places, &state(10), 1, &share("4")).unwrap();
    assert_eq!(machine.read(&format!("{group}/1/tpc.quota")), "4");
    assert!(bind(&machine.places, &state(10), 0, &share("9")).is_err());
    assert_eq!(
        machine.reconcile(None).running,
        [0, 1].map(|gpu| ((gpu, "small".to_owned()), 1)).into()
    );
    release(&machine.places, &state(10)).unwrap();
    assert_eq!((machine.groups().len(), machine.records()), (0, 0));
    release(&machine.places, &state(10)).unwrap();
}

#[test]
fn a_container_under_mps_has_one_gpu() {
    let machine = Machine::new("mps");
    machine.start(2).unwrap();
    let mps = Share {
        mps: true,
        ..share("8")
    };
    let error = bind(&machine.places, &state(2), 1, &mps).unwrap_err();
    assert!(
        format!("{error:#}").contains("one GPU under MPS"),
        "{error:#}"
    );
    bind(&machine.places, &machine.create(4), 0, &mps).unwrap();
    assert!(bind(&machine.places, &state(4), 1, &share("8")).is_err());
    // What it has stays.
    assert_eq!((machine.groups().len(), machine.records()), (2, 2));
}

/// Who chooses ids may choose two that begin alike. Runtimes call poststop for a container whose
/// createRuntime failed, too.
#[test]
fn a_container_that_was_refused_releases_nobody_elses_group() {
    let machine = Machine::new("alike");
    let named = |n: u32, id: &str| State {
        id: id.to_owned(),
        ..machine.create(n)
    };
    let (first, second) = (named(1, "training-jobs-1"), named(2, "training-jobs-2"));
    let [first, second] = [first, second].map(|state| State {
        annotations: Default::default(),
        ..state
    });
    bind(&machine.places, &first, 0, &share("8")).unwrap();
    assert!(bind(&machine.places, &second, 0, &share("8")).is_err());
    release(&machine.places, &second).unwrap();
    assert_eq!(
        (machine.groups(), machine.records()),
        (vec![first.group()], 1)
    );
    release(&machine.places, &first).unwrap();
    assert_eq!((machine.groups().len(), machine.records()), (0, 0));
}

#[test]
fn a_claim_is_one_containers_at_a_time() {
    let machine = Machine::new("claim");
    let claimed = Share {
        claim: Some("u1-0".to_owned()),
        ..share("8")
    };
    bind(&machine.places, &machine.create(2), 0, &claimed).unwrap();
    let error = bind(&machine.places, &machine.create(4), 0, &claimed).unwrap_err();
    assert!(format!("{error:#}").contains(&group(2)), "{error:#}");
    assert_eq!((machine.groups().len(), machine.records()), (1, 1));
    // Another claim, and the same one when its container is gone.
    let other = Share {
        claim: Some("u2-0".to_owned()),
        ..share("8")
    };
    bind(&machine.places, &state(4), 0, &other).unwrap();
    machine.vanish(2);
    bind(&machine.places, &machine.create(6), 0, &claimed).unwrap();
}

#[test]
fn shares_of_claims_on_one_gpu_add_up() {
    let mut machine = Machine::new("shares");
    let state = machine.create(2);
    let claimed = |claim: &str, quota: &str| Share {
        claim: Some(claim.to_owned()),
        ..share(quota)
    };
    for (claim, quota) in [("u1-0", "8"), ("u1-1", "4"), ("u2-0", "2"), ("u1-1", "4")] {
        bind(&machine.places, &state, 0, &claimed(claim, quota)).unwrap();
    }
    let quota = format!("{}/0/tpc.quota", group(2));
    assert_eq!(machine.read(&quota), "14");
    let running = [((0, "small".to_owned()), 1)].into();
    assert_eq!(machine.reconcile(None).running, running);
    machine.daemon.reboot();
    assert_eq!(machine.reconcile(None).restored, [group(2)]);
    assert_eq!(machine.read(&quota), "14");
    // Each share is one container's, and all of them fit or none.
    let other = machine.create(4);
    assert!(bind(&machine.places, &other, 0, &claimed("u1-1", "4")).is_err());
    bind(&machine.places, &other, 0, &claimed("u3-0", "8")).unwrap();
    let error = bind(&machine.places, &other, 0, &claimed("u3-1", "8")).unwrap_err();
    assert!(format!("{error:#}").contains("tpc.quota"), "{error:#}");
    assert_eq!(machine.groups(), [group(2)]);
}

#[test]
fn a_container_that_cannot_have_its_limits_leaves_nothing() {
    let machine = Machine::new("refused");
    let refused = |n: u32, share: &Share| {
        let error = bind(&machine.places, &machine.create(n), 0, share).unwrap_err();
        assert_eq!((machine.groups().len(), machine.records()), (0, 0));
        let line = one_line(error.as_ref());
        assert!(!line.contains(".:"), "{line}");
        line
    };
    assert!(refused(1, &share("29")).contains("tpc.quota"));
    let unsupported = Share {
        limits: vec![("slip.power".to_owned(), "5".to_owned())],
        ..share("8")
    };
    assert!(refused(2, &unsupported).contains("slip.power"));
    let mut gone = state(3);
    gone.pid = 4711;
    let error = bind(&machine.places, &gone, 0, &share("8")).unwrap_err();
    assert!(format!("{error:#}").contains("4711"), "{error:#}");
    assert_eq!((machine.groups().len(), machine.records()), (0, 0));
}

#[test]
fn a_container_that_runs_keeps_its_limit_without_its_quota() {
    let machine = Machine::new("adopt-quota");
    let share = Share {
        limits: vec![
            ("tpc.quota".to_owned(), "40".to_owned()),
            ("gmem.limit".to_owned(), "4096".to_owned()),
        ],
        ..share("8")
    };
    let adopt = |n, share: &Share| {
        let shares = [(0, share.clone())].into_iter();
        super::adopt(&machine.places, &machine.create(n), shares)
    };
    assert!(matches!(adopt(1, &share), Ok(Adopted::Now)));
    assert!(matches!(adopt(1, &share), Ok(Adopted::Before)));
    let lost = match adopt(2, &share) {
        Ok(Adopted::WithoutGuarantee(error)) => format!("{error:#}"),
        other => panic!("{other:?}"),
    };
    assert!(lost.contains("tpc.quota"), "{lost}");
    let files = ["tpc.quota", "gmem.limit"];
    let limits = files.map(|file| machine.read(&format!("{}/0/{file}", group(2))));
    assert_eq!(limits, ["none", "4096"]);
    // What fails without a guarantee, too, leaves nothing.
    let wrong = Share {
        limits: vec![("gmem.limits".to_owned(), "1".to_owned())],
        ..share
    };
    assert!(adopt(3, &wrong).is_err());
    assert_eq!((machine.groups().len(), machine.records()), (2, 2));
}

#[test]
fn a_gpu_has_so_many_containers_as_its_slots() {
    let machine = Machine::new("slots");
    let share = Share {
        profile: nri::PROFILE.to_owned(),
        slots: Some(2),
        ..share("1")
    };
    let start = |n, gpu| bind(&machine.places, &machine.create(n), gpu, &share);
    for n in [1, 2, 1] {
        start(n, 0).unwrap();
    }
    let error = start(3, 0).unwrap_err().to_string();
    assert_eq!(
        error,
        "GPU 0 has 2 containers by annotations, and slots of [nri] allows no more"
    );
    start(4, 1).unwrap();
    assert_eq!((machine.groups().len(), machine.records()), (3, 3));
    machine.vanish(1);
    start(3, 0).unwrap();
}

#[test]
fn one_too_many_starts_when_another_has_ended() {
    let machine = Machine::new("full");
    // The mask has 28 TPCs: room for three of 8.
    for n in [2, 4, 6] {
        machine.start(n).unwrap();
    }
    assert!(machine.start(8).is_err());
    assert_eq!(machine.groups().len(), 3);
    // Nobody told the plugin that this one ended.
    machine.vanish(4);
    machine.reconcile(None);
    machine.start(8).unwrap();
    assert_eq!(machine.read(&format!("{}/0/tpc.quota", group(8))), "8");
}

#[test]
fn groups_that_the_tree_lost_are_restored() {
    let mut machine = Machine::new("restore");
    machine.start(1).unwrap();
    machine.start(2).unwrap();
    machine.daemon.reboot();
    assert_eq!(machine.groups().len(), 0);
    machine.vanish(2);
    let report = machine.reconcile(None);
    assert_eq!(
        (report.restored, report.removed),
        (vec![group(1)], vec![group(2)])
    );
    assert_eq!(machine.read(&format!("{}/1/tpc.quota", group(1))), "8");
    assert_eq!(
        machine.read(&format!("{}/group.cgroup", group(1))),
        cgroup(1)
    );
    assert!(machine.reconcile(None).restored.is_empty());
}

#[test]
fn an_empty_cgroup_is_left_to_the_kubelet() {
    let machine = Machine::new("pods");
    machine.start(1).unwrap();
    let known = HashSet::from([pod(1)]);
    let nobody = HashSet::new();
    // A kubelet that has just started knows nobody. What runs is not touched.
    assert!(machine.reconcile(Some(&nobody)).removed.is_empty());
    machine.write(&format!("cgroups{}/cgroup.events", cgroup(1)), EMPTY);
    assert!(machine.reconcile(None).removed.is_empty());
    assert!(machine.reconcile(Some(&known)).removed.is_empty());
    assert_eq!(machine.reconcile(Some(&nobody)).removed, [group(1)]);
    assert_eq!((machine.groups().len(), machine.records()), (0, 0));
}

#[test]
fn groups_without_a_record_go_with_their_cgroup_and_others_groups_stay() {
    let machine = Machine::new("orphans");
    machine.create(1);
    let client = machine.client();
    for (name, path) in [
        ("k8s_a_b_c_1", cgroup(1)),
        ("k8s_a_b_c_2", "/gone".to_owned()),
        ("ctr_3", "none".to_owned()),
        ("web", "/gone/too".to_owned()),
    ] {
        client.write("control", format!("create {name}")).unwrap();
        client.write(&format!("{name}/group.cgroup"), path).unwrap();
    }
    let mut removed = machine.reconcile(None).removed;
    removed.sort();
    assert_eq!(removed, ["ctr_3", "k8s_a_b_c_2"]);
    let mut groups = machine.groups();
    groups.sort();
    assert_eq!(groups, ["k8s_a_b_c_1", "web"]);
}

/// A process that ends with the test.
struct Sleeper(Child);

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn without_cgroup_version_2_the_first_process_is_the_member() {
    let mut machine = Machine::new("version1");
    fs::remove_file(machine.folder.join("cgroups/cgroup.controllers")).unwrap();
    let sleeper = Sleeper(Command::new("sleep").arg("600").spawn().unwrap());
    let pid = sleeper.0.id();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    machine.write(&format!("proc/{pid}/cgroup"), "8:pids:/kubepods/c1\n0::/\n");
    machine.write(&format!("proc/{pid}/stat"), &stat);
    machine.write("cgroups/pids/kubepods/c1/cgroup.procs", &format!("{pid}\n"));
    let state = State { pid, ..state(1) };
    bind(&machine.places, &state, 0, &share("8")).unwrap();
    assert_eq!(
        machine.read(&format!("{}/group.procs", group(1))),
        pid.to_string()
    );
    // Its program may have a name of any bytes.
    let named = stat
        .bytes()
        .map(|byte| if byte == b'l' { 0xff } else { byte });
    let path = machine.folder.join(format!("proc/{pid}/stat"));
    fs::write(path, named.collect::<Vec<u8>>()).unwrap();
    machine.daemon.reboot();
    assert_eq!(machine.reconcile(None).restored, [group(1)]);
    assert_eq!(
        machine.read(&format!("{}/group.procs", group(1))),
        pid.to_string()
    );
    // The hook waits for the tree to notice the end.
    drop(sleeper);
    release(&machine.places, &state).unwrap();
    assert_eq!(machine.groups().len(), 0);
}

#[test]
fn a_thousand_pods_come_and_go_and_nothing_is_left() {
    const THREADS: u32 = 4;
    const PODS: u32 = 250;
    let machine = Machine::new("thousand");
    let small = Share {
        profile: "small".to_owned(),
        limits: vec![("gmem.limit".to_owned(), "1073741824".to_owned())],
        mps: false,
        claim: None,
        slots: None,
    };
    let done = thread::scope(|scope| {
        let pods = (0..THREADS).map(|thread| {
            let (machine, small) = (&machine, &small);
            scope.spawn(move || {
                for n in (thread * PODS + 1)..=(thread + 1) * PODS {
                    let state = machine.create(n);
                    bind(&machine.places, &state, n % 2, small).unwrap();
                    let limit = format!("{}/{}/gmem.limit", group(n), n % 2);
                    assert_eq!(machine.read(&limit), small.limits[0].1);
                    match n % 3 {
                        // Its runtime died.
                        0 => machine.vanish(n),
                        _ => release(&machine.places, &state).unwrap(),
                    }
                }
            })
        });
        let pods: Vec<_> = pods.collect();
        let mut passes = 0;
        while pods.iter().any(|pod| !pod.is_finished()) {
            // A container is half made or half gone at times: only its group may be, too.
            reconcile(&machine.places, Some(&HashSet::new())).unwrap();
            passes += 1;
        }
        pods.into_iter().for_each(|pod| pod.join().unwrap());
        passes
    });
    assert!(done > 0);
    machine.reconcile(None);
    assert_eq!((machine.groups().len(), machine.records()), (0, 0));
}
