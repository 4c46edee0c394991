// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use crate::profiles;

fn host(test: &str, dir: Option<&str>) -> Host {
    let name = format!("gct-plugin-cdi-{test}-{}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    let _ = fs::remove_dir_all(&directory);
    let devices = directory.join("dev");
    fs::create_dir_all(&devices).unwrap();
    for node in ["nvidia0", "nvidiactl"] {
        fs::write(devices.join(node), "").unwrap();
    }
    Host {
        specs: directory.join("cdi"),
        devices,
        hook: "/opt/plugin".into(),
        library: dir.map(|_| "/opt/lib.so".into()),
        sys: "/sys".into(),
        driver: Driver {
            root: "/".into(),
            seen: directory.join("host"),
            version: directory.join("version"),
        },
        places: Places {
            root: "/tree".into(),
            dir: dir.map(Into::into),
            state: "/state".into(),
            proc: "/proc".into(),
            cgroups: "/sys/fs/cgroup".into(),
        },
        mps: Arc::new(Control {
            program: "control".into(),
            folder: "/mps".into(),
            shm: None,
        }),
    }
}

fn written(host: &Host) -> Value {
    written_for(host, "[profile.small]\ngmem.limit = '1G'")
}

fn written_for(host: &Host, text: &str) -> Value {
    let profile = &profiles::parse(text).unwrap()[0];
    let gpu = Gpu {
        minor: Some(0),
        ..Gpu::default()
    };
    assert!(host.write(profile, &[&gpu]).unwrap());
    assert!(
        !host.write(profile, &[&gpu]).unwrap(),
        "the second time nothing changes"
    );
    let path = host.specs.join("gctgroup.dev_small.json");
    let spec = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert!(host.write(profile, &[]).unwrap());
    assert!(!path.exists(), "a profile without a GPU has no spec");
    let _ = fs::remove_dir_all(host.specs.parent().unwrap());
    spec
}

#[test]
fn the_kernel_mode_gives_nodes_hooks_and_its_name() {
    let host = host("kernel", None);
    let spec = written(&host);
    assert_eq!(spec["kind"], "gctgroup.dev/small");
    let nodes = |name: &str| json!([{ "path": format!("/dev/{name}"), "hostPath": host.devices.join(name) }]);
    assert_eq!(
        spec["containerEdits"],
        json!({ "deviceNodes": nodes("nvidiactl"), "env": ["NVIDIA_VISIBLE_DEVICES=void", "GCTGROUP_MODE=kernel"] })
    );
    let device = &spec["devices"][0];
    assert_eq!(device["name"], "gpu0");
    assert_eq!(device["containerEdits"]["deviceNodes"], nodes("nvidia0"));
    let hooks = &device["containerEdits"]["hooks"];
    assert_eq!(hooks[0]["hookName"], "createRuntime");
    let args: Vec<&str> = hooks[0]["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| a.as_str().unwrap())
        .collect();
    assert_eq!(
        args.join(" "),
        "plugin bind --root /tree --state /state --proc /proc --cgroups /sys/fs/cgroup \
         --profile=small --gpu=0 --minor=0 --limit=gmem.limit=1073741824"
    );
    assert_eq!(
        (&hooks[1]["hookName"], &hooks[1]["args"][1]),
        (&json!("poststop"), &json!("release"))
    );
}

#[test]
fn a_gpu_under_mps_gives_its_daemon() {
    let spec = written_for(&host("mps", None), "[profile.small]\nshare = 'mps'");
    let edits = &spec["devices"][0]["containerEdits"];
    assert_eq!(
        edits["env"],
        json!(["CUDA_MPS_PIPE_DIRECTORY=/run/gctgroup/mps"])
    );
    let mounts: Vec<[&str; 2]> = edits["mounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| ["hostPath", "containerPath"].map(|key| mount[key].as_str().unwrap()))
        .collect();
    assert_eq!(
        mounts,
        [
            ["/mps/gpu0/pipe", "/run/gctgroup/mps"],
            ["/mps/gpu0/shm", "/dev/shm"]
        ]
    );
    let args = edits["hooks"][0]["args"].as_array().unwrap();
    assert!(args.contains(&json!("--mps")));
}

#[test]
fn the_user_mode_gives_library_and_socket() {
    let spec = written(&host("user", Some("/run/gctgroup")));
    let edits = &spec["containerEdits"];
    // The pod's LD_PRELOAD stays.
    let env = json!([
        "NVIDIA_VISIBLE_DEVICES=void",
        "GCTGROUP_SOCKET=/run/gctgroup/tenants/gctd.sock",
    ]);
    assert_eq!(edits["env"], env);
    let from: Vec<&Value> = edits["mounts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|mount| &mount["hostPath"])
        .collect();
    assert_eq!(from, ["/opt/lib.so", "/run/gctgroup/tenants"]);
}

#[test]
fn a_container_has_the_drivers_libraries() {
    let host = host("driver", None);
    let folder = host.driver.seen.join("usr/lib64");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("libcuda.so.550.54.14"), "").unwrap();
    let edits = &written(&host)["containerEdits"];
    let env = edits["env"].as_array().unwrap();
    assert!(env.contains(&json!("TRITON_LIBCUDA_PATH=/usr/lib/x86_64-linux-gnu")));
    let mounts = edits["mounts"].as_array().unwrap();
    for folder in ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"] {
        let mount = json!({
            "hostPath": "/usr/lib64/libcuda.so.550.54.14",
            "containerPath": format!("{folder}/libcuda.so.1"),
            "options": READ_ONLY,
        });
        assert!(mounts.contains(&mount), "{mounts:?}");
    }
}
