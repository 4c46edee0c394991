// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Clients of MPS are taken from their server. A script stands in for NVIDIA's control program: to
//! a pipe it writes when it ends, and not before, as that one does.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gct_client::mps::{Control, Drained};

const SCRIPT: &str = r#"#!/bin/bash
cd "$CUDA_MPS_PIPE_DIRECTORY"
echo $$ >>runs
[ -t 1 ] || exec > >(said=$(cat); echo "$said")
while read -r command server client; do
    case $command in
    get_default_active_thread_percentage) echo 100.0 ;;
    get_server_list) cat servers ;;
    get_client_list) . ./listed ;;
    terminate_client)
        echo "$client" >>terminated
        . ./terminate ;;
    *) echo "Unknown command \"$command\"" ;;
    esac
done
"#;

/// A daemon's directory, whose server is this process.
struct Bed {
    control: Control,
}

impl Bed {
    fn new(test: &str) -> Self {
        let pipe = std::env::temp_dir().join(format!("gct-mps-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&pipe);
        fs::create_dir_all(&pipe).unwrap();
        let program = pipe.join("control-program");
        let bed = Self {
            control: Control { program, pipe },
        };
        bed.write("control-program", SCRIPT);
        let executable = Permissions::from_mode(0o755);
        fs::set_permissions(&bed.control.program, executable).unwrap();
        bed.write("servers", &format!("{}\n", std::process::id()));
        bed.write("listed", "cat clients\n");
        bed.write("terminate", "echo 0\n");
        bed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.control.pipe.join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    fn clients(&self, clients: impl IntoIterator<Item = u32>) {
        let lines = clients.into_iter().map(|client| format!("{client}\n"));
        self.write("clients", &lines.collect::<String>());
    }

    fn drain(&self, is_member: impl FnMut(u32) -> bool) -> Drained {
        let until = Instant::now() + Duration::from_secs(60);
        self.control.drain(until, is_member)
    }

    /// Returns the numbers in a file.
    fn numbers(&self, name: &str) -> Vec<u32> {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    fn terminated(&self) -> Vec<u32> {
        self.numbers("terminated")
    }

    /// Returns how often the control program has run.
    fn runs(&self) -> usize {
        self.numbers("runs").len()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.control.pipe);
    }
}

/// A process that is a client. Dropping it kills it.
struct Client(Child);

impl Client {
    fn new() -> Self {
        Self(Command::new("sleep").arg("600").spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn took(clients: impl IntoIterator<Item = u32>) -> Drained {
    Drained {
        clients: clients.into_iter().collect(),
        failures: Vec::new(),
    }
}

#[test]
fn members_are_taken_from_their_server_and_nobody_else() {
    let bed = Bed::new("members");
    let [one, two, other] = [(); 3].map(|()| Client::new());
    let mut ended = Client::new();
    ended.0.kill().unwrap();
    ended.0.wait().unwrap();
    // One that was taken stays in the list.
    bed.clients([&one, &other, &ended, &two].map(Client::pid));
    let asked = RefCell::new(Vec::new());
    let drained = bed.drain(|pid| {
        asked.borrow_mut().push(pid);
        pid != other.pid()
    });
    assert_eq!(drained, took([one.pid(), two.pid()]));
    assert_eq!(bed.terminated(), drained.clients);
    assert!(!asked.borrow().contains(&ended.pid()));
    assert_eq!(bed.runs(), 1);
    assert_eq!(bed.drain(|_| false), Drained::default());
    assert_eq!(bed.terminated(), drained.clients);
}

/// Its pid is another process's as soon as it has ended.
#[test]
fn a_client_that_ends_meanwhile_is_not_named() {
    let bed = Bed::new("ends");
    let [ends, stays] = [(); 2].map(|()| RefCell::new(Client::new()));
    let pids = [&ends, &stays].map(|client| client.borrow().pid());
    bed.clients(pids);
    let drained = bed.drain(|pid| {
        if pid == pids[0] {
            let mut ends = ends.borrow_mut();
            ends.0.kill().unwrap();
            ends.0.wait().unwrap();
        }
        true
    });
    assert_eq!(drained, took([pids[1]]));
    assert_eq!(bed.terminated(), [pids[1]]);
}

/// Whoever leaves the group while others are taken is not taken any more.
#[test]
fn a_client_that_leaves_meanwhile_is_left_alone() {
    let bed = Bed::new("leaves");
    let [first, leaves] = [(); 2].map(|()| Client::new());
    bed.clients([&first, &leaves].map(Client::pid));
    let drained = bed.drain(|pid| pid == first.pid() || bed.terminated().is_empty());
    assert_eq!(drained, took([first.pid()]));
    assert_eq!(bed.terminated(), [first.pid()]);
}

/// A program that is started anew when its worker fails has another worker soon.
#[test]
fn a_client_that_comes_meanwhile_is_taken_too() {
    let bed = Bed::new("comes");
    let [first, next] = [(); 2].map(|()| Client::new());
    bed.clients([first.pid()]);
    bed.write(
        "terminate",
        &format!("echo {} >>clients; echo 0\n", next.pid()),
    );
    assert_eq!(bed.drain(|_| true), took([first.pid(), next.pid()]));
    assert_eq!(bed.runs(), 1);
}

#[test]
fn a_thousand_clients_are_taken_by_one_program() {
    let bed = Bed::new("thousand");
    let script = "for n in $(seq 1000); do sleep 600 >/dev/null & echo $!; done; exec >&-; wait";
    let mut shell = Command::new("bash");
    shell.args(["-c", script]).stdout(Stdio::piped());
    std::os::unix::process::CommandExt::process_group(&mut shell, 0);
    let mut shell = shell.spawn().unwrap();
    let said = std::io::read_to_string(shell.stdout.take().unwrap()).unwrap();
    let pids: Vec<u32> = said.lines().map(|line| line.parse().unwrap()).collect();
    bed.clients(pids.iter().copied());
    let drained = bed.drain(|pid| pids.contains(&pid));
    let group = rustix::process::Pid::from_child(&shell);
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
    shell.wait().unwrap();
    assert_eq!(drained, took(pids));
    assert_eq!(bed.runs(), 1);
}

#[test]
fn a_control_program_that_hangs_is_left_at_the_deadline() {
    let client = Client::new();
    // It does not read, does not answer, never ends an answer, and does not end.
    for (hangs, file, text) in [
        (
            "reads",
            "control-program",
            "#!/bin/bash\necho $$ >>\"$CUDA_MPS_PIPE_DIRECTORY/runs\"; exec sleep 600\n",
        ),
        ("answers", "terminate", "exec sleep 600\n"),
        ("talks", "listed", "exec yes 4711\n"),
        ("talks-on", "listed", "exec yes\n"),
        ("line", "listed", "exec tr '\\0' 4 </dev/zero\n"),
        (
            "ends",
            "terminate",
            "echo 0; echo 100.0; echo 100.0; exec sleep 600\n",
        ),
    ] {
        let bed = Bed::new(hangs);
        bed.clients([client.pid()]);
        bed.write(file, text);
        let start = Instant::now();
        let until = start + Duration::from_secs(1);
        let drained = bed.control.drain(until, |_| true);
        assert!(start.elapsed() < Duration::from_secs(3), "{hangs}");
        assert_eq!(
            drained.failures.is_empty(),
            hangs == "ends",
            "{hangs}: {drained:?}"
        );
        let program = bed.numbers("runs")[0];
        let is_there = PathBuf::from(format!("/proc/{program}")).exists();
        assert!(!is_there, "{hangs}: the program is left");
    }
}

#[test]
fn what_a_daemon_refuses_is_said() {
    let client = Client::new();
    let says = |test: &str, change: &dyn Fn(&Bed)| {
        let bed = Bed::new(test);
        bed.clients([client.pid()]);
        change(&bed);
        let drained = bed.drain(|_| true);
        assert_eq!(drained.clients, []);
        assert_eq!(drained.failures.len(), 1, "{test}: {drained:?}");
        (drained.failures[0].clone(), bed.terminated().len())
    };
    let refuses = "echo \"Invalid process $client!\"; echo 1\n";
    let (said, _) = says("refuses", &|bed| bed.write("terminate", refuses));
    let pid = client.pid();
    assert_eq!(said, format!("client {pid}: Invalid process {pid}!, 1"));
    // As NVIDIA's without a daemon.
    let none = "#!/bin/sh\necho 'Cannot find MPS control daemon process' >&2; exit 1\n";
    let (said, _) = says("none", &|bed| bed.write("control-program", none));
    assert!(
        said.contains("Cannot find MPS control daemon process"),
        "{said}"
    );
    let (said, _) = says("missing", &|bed| {
        fs::remove_file(&bed.control.program).unwrap();
    });
    assert!(said.contains("No such file"), "{said}");
    // A number beyond all pids: the server is in another pid namespace, and so are its clients.
    let (said, asked) = says("elsewhere", &|bed| bed.write("servers", "4194305\n"));
    assert!(said.contains("server 4194305 is no process here"), "{said}");
    assert_eq!(asked, 0);
}

/// A daemon that lists a client for ever, each time under another process's pid, gets no further
/// than the deadline, and names no process that is no member.
#[test]
fn a_daemon_that_lies_has_nobody_named() {
    let bed = Bed::new("lies");
    let client = Client::new();
    let all = "printf '%s\\n' -1 0 1 4294967296 x '' 007 $$ $PPID; cat clients; ls /proc\n";
    bed.write("listed", all);
    bed.clients([client.pid()]);
    let members = HashSet::from([client.pid()]);
    let asked = Cell::new(0);
    let drained = bed.drain(|pid| {
        asked.set(asked.get() + 1);
        members.contains(&pid)
    });
    assert_eq!(drained, took([client.pid()]));
    assert_eq!(bed.terminated(), [client.pid()]);
    assert!(asked.get() > 0);
}
