// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Starts QEMU with the test kernel, its initramfs and the GPUs.

use crate::child::OwnedChild;
use anyhow::Context;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Time limit of QEMU for a GPU's reply. Writes are posted, so a read may have to wait for
/// thousands of them.
const MESSAGE_LIMIT_MS: u32 = 60_000;

/// The configuration of a machine.
#[derive(Debug)]
pub(crate) struct Machine<'a> {
    /// The QEMU binary.
    pub(crate) qemu: &'a Path,
    /// The kernel, a bzImage.
    pub(crate) kernel: &'a Path,
    /// The root file system.
    pub(crate) initramfs: &'a Path,
    /// Guest memory in MiB.
    pub(crate) memory_mib: u32,
    /// Virtual processors.
    pub(crate) processors: u8,
    /// Further parameters for the kernel's command line.
    pub(crate) append: &'a str,
    /// Whether there is a network, whose address 10.0.2.2 is the host's loopback.
    pub(crate) network: bool,
    /// One vfio-user socket for each GPU.
    pub(crate) gpus: Vec<&'a Path>,
    /// The serial ports.
    pub(crate) serial: Serial,
    /// Destination of QEMU's own messages.
    pub(crate) messages: &'a Path,
}

/// Destination of the serial ports.
#[derive(Debug)]
pub(crate) enum Serial {
    /// ttyS0 (the kernel) and ttyS1 (programs), connected to these listening sockets.
    Sockets { kernel: PathBuf, programs: PathBuf },
    /// ttyS0 on the terminal, for everything.
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
        // The GPUs' servers map the guest's memory, which therefore is a shared memfd.
        option(
            "object",
            format!(
                "memory-backend-memfd,id=memory,size={}M,share=on",
                self.memory_mib
            ),
        );
        option("m", format!("{}M", self.memory_mib));
        option("machine", "q35,memory-backend=memory".into());
        // Emulation: a nested hypervisor may offer KVM and still fail to run some kernels. A boot
        // takes a second in both cases.
        option("accel", "tcg,thread=multi".into());
        // A processor of 2013: what later ones have costs emulation a third of its time. Without
        // five-level paging: while it boots, the debug kernel rewrites the processor flags
        // that it reads the size of the address space from. KASAN in an interrupt in between would
        // report a wild access.
        option("cpu", "Haswell-v2,smap=on".into());
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
        if self.network {
            option("netdev", "user,id=network".into());
            option("device", "virtio-net-pci,netdev=network,romfile=".into());
        }
        for (index, socket) in self.gpus.iter().enumerate() {
            // On the root bus QEMU would show the device without a PCIe link, and the driver reads
            // the link's speed.
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
        // A panic reboots, which ends QEMU. The timer check and the stall detector measure real
        // time, of which an emulated processor on a busy host gets little. On such a host the guest
        // also calibrates its TSC up to fifty times too slow, so every time limit based on it fires
        // that much too early. Its other clocks are right.
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
