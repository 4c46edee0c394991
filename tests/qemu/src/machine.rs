// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Starts QEMU with the test kernel, its initramfs and the GPUs.

use crate::child::OwnedChild;
use anyhow::Context;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// How long QEMU waits for the answer of a GPU. Writes are posted: a read may
/// have to wait for thousands of them.
const MESSAGE_LIMIT_MS: u32 = 60_000;

/// Everything about the machine that a caller chooses.
#[derive(Debug)]
pub(crate) struct Machine<'a> {
    /// The program to run.
    pub(crate) qemu: &'a Path,
    /// The kernel, a bzImage.
    pub(crate) kernel: &'a Path,
    /// The root file system.
    pub(crate) initramfs: &'a Path,
    /// Guest memory in MiB.
    pub(crate) memory_mib: u32,
    /// Virtual processors.
    pub(crate) processors: u8,
    /// More words for the kernel's command line.
    pub(crate) append: &'a str,
    /// One vfio-user socket for each GPU.
    pub(crate) gpus: Vec<&'a Path>,
    /// Where the two serial ports go.
    pub(crate) serial: Serial,
    /// Where QEMU's own messages go.
    pub(crate) messages: &'a Path,
}

/// The serial ports.
#[derive(Debug)]
pub(crate) enum Serial {
    /// ttyS0 (the kernel) and ttyS1 (programs) to these listening sockets.
    Sockets { kernel: PathBuf, programs: PathBuf },
    /// ttyS0 to the terminal, for everything.
    Terminal,
}

impl Machine<'_> {
    /// Starts the machine.
    pub(crate) fn start(&self) -> anyhow::Result<OwnedChild> {
        let mut command = Command::new(self.qemu);
        command.args(self.arguments());
        if matches!(self.serial, Serial::Sockets { .. }) {
            let messages = File::create(self.messages)
                .with_context(|| format!("Cannot create {}", self.messages.display()))?;
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(messages);
        }
        OwnedChild::spawn(&mut command)
            .with_context(|| format!("Cannot start {}; run make setup", self.qemu.display()))
    }

    fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut option = |name: &str, value: String| {
            arguments.push(format!("-{name}"));
            arguments.push(value);
        };
        // The GPUs' servers map the guest's memory, hence the shared memfd.
        option(
            "object",
            format!(
                "memory-backend-memfd,id=memory,size={}M,share=on",
                self.memory_mib
            ),
        );
        option("m", format!("{}M", self.memory_mib));
        option("machine", "q35,memory-backend=memory".into());
        // Emulation: a nested hypervisor may offer KVM without being able to
        // run every kernel, and a boot takes a second either way.
        option("accel", "tcg,thread=multi".into());
        // Without five-level paging: the debug kernel asks the processor's
        // flags, which it rewrites while it boots, how large the address space
        // is, and KASAN in an interrupt in between reports a wild access.
        option("cpu", "max,la57=off".into());
        option("smp", self.processors.to_string());
        option("display", "none".into());
        option("kernel", self.kernel.display().to_string());
        option("initrd", self.initramfs.display().to_string());
        option("append", self.command_line());
        match &self.serial {
            Serial::Sockets { kernel, programs } => {
                for (id, path) in [("kernel", kernel), ("programs", programs)] {
                    option("chardev", format!("socket,id={id},path={}", path.display()));
                    option("serial", format!("chardev:{id}"));
                }
            }
            Serial::Terminal => {
                option("chardev", "stdio,id=terminal,mux=on,signal=off".into());
                option("serial", "chardev:terminal".into());
                option("mon", "chardev=terminal".into());
            }
        }
        for (index, socket) in self.gpus.iter().enumerate() {
            // On the root bus QEMU would show the device without a PCIe link,
            // and the driver asks for the link's speed.
            let (port, chassis) = (format!("port{index}"), index + 1);
            option(
                "device",
                format!("pcie-root-port,id={port},chassis={chassis},slot={chassis}"),
            );
            option(
                "device",
                format!(
                    r#"{{"driver":"vfio-user-pci","x-msg-timeout":{MESSAGE_LIMIT_MS},"bus":"{port}","socket":{{"type":"unix","path":"{}"}}}}"#,
                    socket.display()
                ),
            );
        }
        arguments.push("-no-reboot".into());
        arguments.push("-nodefaults".into());
        arguments
    }

    fn command_line(&self) -> String {
        // A panic reboots, which ends QEMU. The timer check and the stall
        // detector measure real time, of which an emulated processor on a busy
        // host gets little. There the guest also takes its TSC for up to fifty
        // times slower than it is, and every time limit in it fires that much
        // too early; its other clocks are right.
        let mut words = "console=ttyS0,115200 panic=-1 no_timer_check \
             rcupdate.rcu_cpu_stall_timeout=120 tsc=unstable"
            .to_owned();
        if matches!(self.serial, Serial::Terminal) {
            words.push_str(" gct.interactive quiet loglevel=6");
        }
        if !self.append.is_empty() {
            words.push(' ');
            words.push_str(self.append);
        }
        words
    }
}
