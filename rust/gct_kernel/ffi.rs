// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Every function that C calls. Nothing is followed yet: the objects link, and
//! the hooks stay off.

use crate::bindings::{self, gct_call, gct_gpu, gct_process};
use kernel::bindings::{file, inode};
use kernel::ffi::{c_char, c_int, c_void};
use kernel::prelude::*;

/// Makes a difference between a function here and its declaration in the C
/// headers a compile error: both arms must have one type.
macro_rules! check_signatures {
    ($($function:ident),* $(,)?) => {
        $(const _: () = { let _ = if true { bindings::$function } else { $function }; };)*
    };
}

check_signatures!(
    gct_init,
    gct_exit,
    gct_gpu_add,
    gct_gpu_uuid,
    gct_gpu_remove,
    gct_file_open,
    gct_file_close,
    gct_ioctl_enter,
    gct_ioctl_leave,
    gct_debugfs_open,
    gct_debugfs_write,
    gct_trace_fork,
    gct_trace_exit,
);

#[no_mangle]
unsafe extern "C" fn gct_init() -> c_int {
    pr_info!("linked, follows nothing yet\n");
    0
}

#[no_mangle]
unsafe extern "C" fn gct_exit() {}

#[no_mangle]
unsafe extern "C" fn gct_gpu_add(_: *const gct_gpu) {}

#[no_mangle]
unsafe extern "C" fn gct_gpu_uuid(_: u32, _: *const u8) {}

#[no_mangle]
unsafe extern "C" fn gct_gpu_remove(_: u32) {}

#[no_mangle]
unsafe extern "C" fn gct_file_open() -> *mut c_void {
    core::ptr::null_mut()
}

#[no_mangle]
unsafe extern "C" fn gct_file_close(_: *mut c_void) {}

#[no_mangle]
unsafe extern "C" fn gct_ioctl_enter(
    _: *mut c_void,
    _: u32,
    _: *const c_void,
    _: u32,
    _: *mut gct_call,
) {
}

#[no_mangle]
unsafe extern "C" fn gct_ioctl_leave(
    _: *mut c_void,
    _: u32,
    _: *const c_void,
    _: u32,
    _: *mut gct_call,
) {
}

#[no_mangle]
unsafe extern "C" fn gct_debugfs_open(_: *mut inode, _: *mut file) -> c_int {
    ENODEV.to_errno()
}

#[no_mangle]
unsafe extern "C" fn gct_debugfs_write(
    _: *mut file,
    _: *const c_char,
    _: usize,
    _: *mut i64,
) -> isize {
    // CAST: errno numbers fit.
    ENODEV.to_errno() as isize
}

#[no_mangle]
unsafe extern "C" fn gct_trace_fork(_: *const gct_process, _: *const gct_process) {}

#[no_mangle]
unsafe extern "C" fn gct_trace_exit(_: *const gct_process) {}
