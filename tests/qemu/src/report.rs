// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Distinguishes the kernel's bug reports from its other messages.

/// Prefixes of messages by which the kernel reports a bug: of itself, or found by lockdep, KASAN,
/// kmemleak, DEBUG_LIST, DEBUG_OBJECTS and the like.
const REPORTS: &[&str] = &[
    "BUG",
    "WARNING: ",
    "Oops",
    "Kernel panic",
    "general protection fault",
    "Internal error",
    "INFO: task ",
    "INFO: possible",
    "rcu: INFO: ",
    "watchdog: BUG",
    "UBSAN: ",
    "list_add corruption",
    "list_del corruption",
    "Unable to handle",
    "unregister_netdevice",
    "kmemleak: Cannot",
    "rust_kernel: panicked",
    // What a later kernel will not have any more.
    "workqueue: work func ",
];

/// What nvidia-uvm.ko says of an assertion. Its debug build has hundreds of them, its release build
/// a few.
const ASSERTION: &str = "Assert failed, condition ";

/// Assertions that NVIDIA's own tests violate on purpose: GPU_SEMAPHORE_SANITY has semaphores jump,
/// and CHANNEL_SANITY completes what was not queued. ci/test-gpu.sh counts them.
const PROVOKED: &[&str] = &[
    "new_value - old_value <= UVM_GPU_SEMAPHORE_MAX_JUMP ",
    "completed_value <= channel->tracking_sem.queued_value ",
];

/// Returns whether a line of the kernel's console begins a bug report.
///
/// Only what follows the time stamp is looked at, so that a program's words do not count.
pub(crate) fn is_bug(line: &str) -> bool {
    let Some(message) = after_time_stamp(line) else {
        return false;
    };
    REPORTS.iter().any(|start| message.starts_with(start)) || is_leak(message)
}

/// Returns whether a line is nvidia-uvm's, of an assertion that no test violates on purpose. The
/// line must be whole: on the console, which loses characters, any condition may look unknown.
pub(crate) fn is_failed_assertion(line: &str) -> bool {
    let condition = after_time_stamp(line)
        .and_then(|message| message.strip_prefix("nvidia-uvm: "))
        .and_then(|said| said.split_once(ASSERTION));
    let provoked = |condition: &str| PROVOKED.iter().any(|known| condition.starts_with(known));
    condition.is_some_and(|(_, condition)| !provoked(condition))
}

/// Returns whether `message` is kmemleak's: "N new suspected memory leaks (see ...)".
fn is_leak(message: &str) -> bool {
    message.starts_with("kmemleak: ") && message.contains("new suspected memory leak")
}

/// Returns the message of a line like "[    1.234567] message" or, with the caller, "[
/// 1.234567][  T12] message".
fn after_time_stamp(line: &str) -> Option<&str> {
    let (time, mut message) = line.strip_prefix('[')?.split_once(']')?;
    let time = time.trim_start();
    if time.is_empty() || !time.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return None;
    }
    if let Some((_, rest)) = message.strip_prefix('[').and_then(|m| m.split_once(']')) {
        message = rest;
    }
    message.strip_prefix(' ')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_recognised() {
        for line in [
            "[    1.500000] BUG: KASAN: slab-use-after-free in gct_file_close+0x1/0x2",
            "[    1.5] WARNING: possible circular locking dependency detected",
            "[   12.000001] BUG: sleeping function called from invalid context at a.c:1",
            "[  600.000000] INFO: task sh:12 blocked for more than 60 seconds.",
            "[    0.1] Oops: general protection fault, maybe for address 0x0: 0000 [#1]",
            "[    0.1][  T12] Kernel panic - not syncing: Fatal exception",
            "[    9.0] kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)",
            "[    9.0] workqueue: work func a [b] enqueued on deprecated workqueue. Use c instead.",
        ] {
            assert!(is_bug(line), "{line}");
        }
    }

    #[test]
    fn assertions_are_recognised_but_for_provoked_ones() {
        let said = |condition: &str| {
            let place = "[    9.0] nvidia-uvm: uvm_pmm_gpu.c:696 chunk_free_locked[pid:74]";
            is_failed_assertion(&format!("{place} Assert failed, condition {condition}"))
        };
        assert!(said("chunk->va_block == NULL not true"));
        assert!(said("new_value < UVM_GPU_SEMAPHORE_MAX_JUMP not true"));
        for known in PROVOKED {
            assert!(!said(&format!("{known}not true: GPU ID 1")), "{known}");
        }
        let printed = "nvidia-uvm: a.c:1 b[pid:2] Assert failed, condition c not true";
        assert!(!is_failed_assertion(printed));
    }

    #[test]
    fn other_messages_are_not() {
        for line in [
            "[    1.500000] NVRM: BUG in the sense of NVIDIA",
            "BUG: printed by a program",
            "[ok] WARNING: not a time stamp",
            "[    0.1] nvidia: loading out-of-tree module taints kernel.",
            "[    0.1] kmemleak: Kernel memory leak detector initialized",
        ] {
            assert!(!is_bug(line), "{line}");
        }
    }
}
