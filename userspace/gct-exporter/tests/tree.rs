// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The metrics are those of the tree: gctd's, and a directory of files as debugfs has it.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::Exporter;
use gct_core::iface::files::{self, Mode};
use gct_core::iface::Place;
use gctd::testing::Daemon;

const UID: &str = "8f7a2d34-5b1c-4c7e-9f0e-2a6b8d3c1e55";
const ID: &str = "3b5f0c1d9e8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c";

/// Ends the thread that changes a tree, also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn on_daemon(daemon: &Daemon) -> Exporter {
    Exporter::new(&["--dir".as_ref(), daemon.directory.as_os_str()])
}

#[test]
fn processes_without_the_library_are_counted() {
    let daemon = Daemon::new("exporter-others", 2);
    let proc = daemon.directory.join("proc");
    for (pid, gpu) in [(11, 1), (12, 1), (13, 7)] {
        let process = proc.join(pid.to_string());
        fs::create_dir_all(process.join("fd")).unwrap();
        std::os::unix::fs::symlink(format!("/dev/nvidia{gpu}"), process.join("fd/3")).unwrap();
    }
    let options = [
        "--dir".as_ref(),
        daemon.directory.as_os_str(),
        "--proc".as_ref(),
        proc.as_os_str(),
    ];
    let admin = daemon.client();
    for (group, cgroup) in [("web", "/web"), ("free", "/free")] {
        admin.write("control", format!("create {group}")).unwrap();
        admin
            .write(&format!("{group}/group.cgroup"), cgroup)
            .unwrap();
    }
    admin.write("web/1/gmem.limit", "1G").unwrap();
    fs::write(proc.join("11/cgroup"), "0::/web/a\n").unwrap();
    fs::write(proc.join("12/cgroup"), "0::/free\n").unwrap();
    let page = Exporter::new(&options).page();
    let escapes = |group: &str| {
        let series = "gctgroup_group_processes_unknown";
        page.get(&format!("{series}{{gpu=\"1\",group=\"{group}\"}}"))
    };
    assert_eq!((escapes("web"), escapes("free")), (Some(1.0), None));
    for (gpu, count) in [(0, 0.0), (1, 2.0)] {
        let series = format!("gctgroup_gpu_processes_unknown{{gpu=\"{gpu}\"}}");
        assert_eq!(page.get(&series), Some(count), "{series}");
    }
    let series = "gctgroup_gpu_processes_unknown{gpu=\"0\"}";
    assert_eq!(on_daemon(&daemon).page().get(series), None);
}

#[test]
fn the_metrics_are_those_of_gctd() {
    let daemon = Daemon::new("exporter", 2);
    let admin = daemon.client();
    admin.write("control", "create web").unwrap();
    admin.write("web/0/gmem.limit", "1G").unwrap();
    admin.write("web/1/tpc.mask", "0-3").unwrap();
    admin.write("web/0/atom.duration", "50").unwrap();
    let path = format!("/kubepods/burstable/pod{UID}/{ID}");
    admin.write("web/group.cgroup", &path).unwrap();
    let own = std::process::id().to_string();
    admin.write("web/group.procs", &own).unwrap();
    let exporter = on_daemon(&daemon);
    let (head, _) = exporter.metrics();
    let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.contains(kind), "{head}");
    let page = exporter.page();
    let is = |series: &str, value: f64| assert_eq!(page.get(series), Some(value), "{series}");
    is("gctgroup_up", 1.0);
    is("gctgroup_exporter_read_errors_total", 0.0);
    is("gctgroup_gpu_tpcs{gpu=\"1\"}", 66.0);
    is("gctgroup_gpu_feature{file=\"tpc.mask\",gpu=\"0\"}", 1.0);
    is("gctgroup_group_processes{group=\"web\"}", 1.0);
    let limit = "gctgroup_group_memory_limit_bytes";
    is(
        &format!("{limit}{{gpu=\"0\",group=\"web\"}}"),
        1_073_741_824.0,
    );
    assert_eq!(page.series(limit).len(), 1, "max is no number");
    is("gctgroup_group_tpc_mask{gpu=\"0\",group=\"web\"}", 66.0);
    is("gctgroup_group_tpc_mask{gpu=\"1\",group=\"web\"}", 4.0);
    is(
        "gctgroup_group_atom_duration_seconds{gpu=\"0\",group=\"web\"}",
        0.00005,
    );
    is(
        "gctgroup_group_compute_frozen{gpu=\"0\",group=\"web\"}",
        0.0,
    );
    is(
        "gctgroup_group_launches_total{gpu=\"0\",group=\"web\"}",
        0.0,
    );
    is("gctgroup_untracked_events_total{event=\"decode\"}", 0.0);
    assert_eq!(
        page.series("gctgroup_group_host_memory_limit_bytes").len(),
        0,
        "not supported"
    );
    is(
        &format!(
            "gctgroup_group_info{{cgroup=\"{path}\",container_id=\"{ID}\",group=\"web\",\
             pod_uid=\"{UID}\",qos=\"burstable\"}}"
        ),
        1.0,
    );
    let gpus = page.series("gctgroup_gpu_info");
    assert!(
        gpus.len() == 2 && gpus[0].contains("name=\"NVIDIA H200\""),
        "{gpus:?}"
    );
}

#[test]
fn who_does_not_know_openmetrics_gets_the_same_samples_as_text() {
    let daemon = Daemon::new("exporter-text", 1);
    let admin = daemon.client();
    admin.write("control", "create web").unwrap();
    admin.write("web/0/gmem.limit", "1G").unwrap();
    admin.write("web/0/atom.duration", "50").unwrap();
    let exporter = on_daemon(&daemon);
    let asked = |accept: &str| {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\n\r\n");
        let answer = exporter.ask(&request);
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        (head.to_ascii_lowercase(), body.to_owned())
    };
    // Series and values, but for the time of the read.
    let samples = |body: &str| {
        let lines = body.lines().filter(|line| !line.starts_with('#'));
        let parts = lines.filter_map(|line| line.rsplit_once(' '));
        let parts = parts.filter(|(series, _)| !series.contains("read_time"));
        let number = |text: &str| text.parse::<f64>().expect("a number");
        let sample = |(series, value): (&str, &str)| (series.replace("{}", ""), number(value));
        parts.map(sample).collect::<Vec<_>>()
    };
    let (head, text) = asked("text/plain;version=0.0.4;q=1, */*;q=0.1");
    let kind = "content-type: text/plain; version=0.0.4; charset=utf-8";
    assert!(
        head.contains(kind) && head.contains("vary: accept"),
        "{head}"
    );
    assert!(
        text.contains("# TYPE gctgroup_group_info gauge\n"),
        "{text}"
    );
    let counter = "# TYPE gctgroup_exporter_read_errors_total counter\n";
    assert!(text.contains(counter), "{text}");
    assert!(
        !text.contains("# EOF") && !text.contains("# UNIT"),
        "{text}"
    );
    // As Prometheus asks.
    let both = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
    for accept in [both, "*/*"] {
        let (head, page) = asked(accept);
        assert!(head.contains("application/openmetrics-text"), "{head}");
        assert_eq!(samples(&page), samples(&text), "{accept}");
    }
}

#[test]
fn once_prints_the_same_samples() {
    let files = Files::new("once");
    files.owner("web", Some(Place::Group));
    let once = |root: &Path| {
        let program = Command::new(env!("CARGO_BIN_EXE_gct-exporter"))
            .args(["--once".as_ref(), "--root".as_ref(), root.as_os_str()])
            .output()
            .unwrap();
        assert!(program.status.success(), "{program:?}");
        String::from_utf8(program.stdout).unwrap()
    };
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\n\r\n";
    let answer = files.exporter(&[]).ask(request);
    let (_, served) = answer.split_once("\r\n\r\n").expect("an answer");
    let without_time = |page: &str| {
        let lines = page.lines().filter(|line| !line.contains("read_time"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut served = without_time(served);
    // Nobody listens, so there are no connections.
    served.retain(|line| !line.contains("connections_closed"));
    assert_eq!(without_time(&once(&files.0)), served);
    let nothing = once(&files.0.join("nothing"));
    assert!(nothing.contains("\ngctgroup_up 0\n"), "{nothing}");
}

#[test]
fn a_tree_that_fails_is_down_and_comes_back() {
    let mut daemon = Daemon::new("exporter-down", 1);
    daemon.client().write("control", "create web").unwrap();
    let exporter = on_daemon(&daemon);
    assert_eq!(exporter.page().series("gctgroup_group_info").len(), 1);
    daemon.stop();
    let page = exporter.page_with("gctgroup_up", 0.0);
    assert_eq!(page.series("gctgroup_group_info").len(), 0);
    daemon.restart();
    exporter.page_with("gctgroup_up", 1.0);
}

#[test]
fn half_of_a_tree_is_not_shown() {
    let files = Files::new("half");
    files.owner("web", Some(Place::Group));
    fs::remove_dir_all(files.0.join("gpus")).unwrap();
    let page = files.exporter(&[]).page();
    assert_eq!(page.get("gctgroup_up"), Some(0.0));
    assert_eq!(page.series("gctgroup_tree_info").len(), 0);
}

#[test]
fn groups_may_come_and_go_while_they_are_read() {
    let daemon = Daemon::new("exporter-change", 2);
    let admin = daemon.client();
    for n in 0..30 {
        admin.write("control", format!("create stays{n}")).unwrap();
    }
    let mut exporter = on_daemon(&daemon);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for verb in ["create", "remove"] {
                    for n in 0..30 {
                        admin.write("control", format!("{verb} goes{n}")).unwrap();
                    }
                }
            }
        });
        let _stop = Stop(&stop);
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(3) {
            let page = exporter.page();
            let stays = page.series("gctgroup_group_info");
            let stays = stays.iter().filter(|series| series.contains("\"stays"));
            assert_eq!(stays.count(), 30);
            assert_eq!(page.get("gctgroup_up"), Some(1.0));
            assert_eq!(page.get("gctgroup_exporter_read_errors_total"), Some(0.0));
        }
    });
    assert!(exporter.runs());
}

/// A tree of plain files. Dropping it removes it.
struct Files(PathBuf);

impl Files {
    fn new(test: &str) -> Self {
        let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let files = Self(root.join(format!("exporter-{test}-{}", std::process::id())));
        let _ = fs::remove_dir_all(&files.0);
        files.directory("", Place::Root);
        files.write("version", "gctgroup 0.1.0 abi 3");
        files.directory("gpus/0", Place::Gpu);
        files.write("gpus/0/tpcs", "66");
        files.write("gpus/0/memory.total", "150754820096");
        files
    }

    fn write(&self, path: &str, text: &str) {
        fs::write(self.0.join(path), format!("{text}\n")).unwrap();
    }

    /// Creates the files of a place with their defaults. What has none is absent, as on a GPU that
    /// does not support it.
    fn directory(&self, path: &str, place: Place) {
        fs::create_dir_all(self.0.join(path)).unwrap();
        for entry in files::of(place).filter(|entry| entry.mode != Mode::Write) {
            if !entry.default.is_empty() {
                self.write(&format!("{path}/{}", entry.name), entry.default);
            }
        }
    }

    fn owner(&self, name: &str, place: Option<Place>) {
        if let Some(place) = place {
            self.directory(name, place);
        }
        self.directory(&format!("{name}/0"), Place::Pool);
        self.write(&format!("{name}/0/gmem.current"), "4096");
    }

    fn exporter(&self, options: &[&str]) -> Exporter {
        let options = options.iter().map(AsRef::as_ref);
        let root = ["--root".as_ref(), self.0.as_os_str()];
        Exporter::new(&root.into_iter().chain(options).collect::<Vec<_>>())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_gpu_that_the_driver_gave_up_is_not_healthy() {
    let files = Files::new("health");
    let healthy = "gctgroup_gpu_healthy{gpu=\"0\"}";
    let exporter = files.exporter(&[]);
    assert_eq!(exporter.page().get(healthy), None, "nobody knows");
    for (health, is) in [("ok", 1.0), ("xid 79", 0.0)] {
        files.write("gpus/0/health", health);
        exporter.page_with(healthy, is);
    }
}

#[test]
fn owners_beyond_the_maximum_are_counted() {
    let files = Files::new("maximum");
    for pid in [900, 1000, 20, 3, 70] {
        files.owner(&pid.to_string(), None);
    }
    for group in ["a", "b", "c"] {
        files.owner(group, Some(Place::Group));
    }
    let usage = "gctgroup_process_memory_usage_bytes";
    let exporter = files.exporter(&["--groups-max", "2"]);
    let page = exporter.page();
    assert_eq!(page.series(usage).len(), 0, "processes are a flag");
    assert_eq!(page.series("gctgroup_group_memory_usage_bytes").len(), 2);
    let left_out = |kind: &str| format!("gctgroup_exporter_left_out{{kind=\"{kind}\"}}");
    assert_eq!(page.get(&left_out("groups")), Some(1.0));
    assert_eq!(page.get(&left_out("processes")), Some(5.0));
    let page = files.exporter(&["--processes-max", "2"]).page();
    let series = [20, 3].map(|pid| format!("{usage}{{gpu=\"0\",pid=\"{pid}\"}}"));
    assert_eq!(page.series(usage), series);
    assert_eq!(page.get(&left_out("groups")), Some(0.0));
    assert_eq!(page.get(&left_out("processes")), Some(3.0));
}

#[test]
fn a_directory_of_files_may_change_while_it_is_read() {
    let files = Files::new("change");
    for n in 0..30 {
        files.owner(&format!("goes{n}"), Some(Place::Group));
    }
    let mut exporter = files.exporter(&["--processes-max", "100"]);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let away = files.0.with_extension("away");
            let _ = fs::remove_dir_all(&away);
            fs::create_dir(&away).unwrap();
            while !stop.load(Ordering::Relaxed) {
                for n in 0..30 {
                    let there = files.0.join(format!("goes{n}"));
                    let hidden = away.join(format!("goes{n}"));
                    fs::rename(&there, &hidden).unwrap();
                    fs::rename(&hidden, &there).unwrap();
                }
            }
            fs::remove_dir_all(&away).unwrap();
        });
        let _stop = Stop(&stop);
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(3) {
            let page = exporter.page();
            assert_eq!(page.get("gctgroup_up"), Some(1.0));
            assert_eq!(page.get("gctgroup_exporter_read_errors_total"), Some(0.0));
        }
    });
    assert!(exporter.runs());
}

#[test]
fn what_cannot_be_understood_is_counted_and_the_rest_is_served() {
    let files = Files::new("form");
    files.owner("web", Some(Place::Group));
    files.write("web/0/compute.weight", "much");
    files.write("web/0/gmem.current", "-1");
    files.write("gpus/0/name", "a \"GPU\" \\ of\u{7} ours");
    fs::write(files.0.join("web/0/compute.stat"), [0xff, 0xfe]).unwrap();
    let page = files.exporter(&[]).page();
    assert_eq!(page.get("gctgroup_exporter_read_errors_total"), Some(3.0));
    assert_eq!(page.series("gctgroup_group_memory_usage_bytes").len(), 0);
    assert_eq!(page.series("gctgroup_group_compute_priority").len(), 1);
    let gpu = page.series("gctgroup_gpu_info");
    assert!(
        gpu[0].contains(r#"name="a \"GPU\" \\ of\u{7} ours""#),
        "{gpu:?}"
    );
}
