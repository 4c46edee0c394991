// SPDX-License-Identifier: GPL-2.0 OR MIT

// Made by ci/bindings.sh; not edited by hand.
use kernel::bindings::{file, file_operations, seq_file, task_struct, workqueue_struct};

pub const GCT_ABI_VERSION: u32 = 19;
pub const GCT_GPU_NAME_BYTES: u32 = 64;
pub const GCT_GPU_UUID_BYTES: u32 = 16;
pub const GCT_UVM_ACCOUNTS: u32 = 4096;
pub const GCT_UVM_NO_ACCOUNT: u32 = 4294967295;
pub const GCT_UVM_NO_ROOT: u32 = 4294967295;
pub const GCT_UVM_ANYWAY: u32 = 4294967295;
pub const GCT_UVM_PASSING: u32 = 0;
pub const GCT_UVM_RENEWED: u32 = 1;
pub const GCT_UVM_LASTING: u32 = 2;
pub const GCT_UVM_REFUSED: u64 = 9223372036854775807;
pub const GCT_MAP_LIVE: u32 = 0;
pub const GCT_MAP_HELD: u32 = 1;
pub const GCT_MAP_OVER: u32 = 2;
pub const GCT_DOOR_READ: u32 = 1;
pub const GCT_DOOR_WRITE: u32 = 2;
pub const GCT_WORKER_WOKEN: u32 = 1;
pub const GCT_WORKER_CLOSED: u32 = 2;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct gct_gpu {
    pub size: u32,
    pub gpu_id: u32,
    pub minor: u32,
    pub domain: u32,
    pub bus: u8,
    pub slot: u8,
    pub function: u8,
    pub reserved: u8,
    pub vendor: u16,
    pub device: u16,
    pub subsystem_vendor: u16,
    pub subsystem_device: u16,
    pub pmc_boot_42: u32,
    pub bar0_base: u64,
    pub bar0_len: u64,
    pub fb_base: u64,
    pub fb_len: u64,
    pub name: [kernel::ffi::c_char; 64usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct gct_call {
    pub has_entered: u64,
    pub entered: [u64; 16usize],
    pub served: [u64; 8usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct gct_uvm_space {
    pub number: u64,
    pub client: u32,
    pub object: u32,
    pub uuid: [u8; 16usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct gct_uvm_mapping {
    pub number: u64,
    pub address: u64,
    pub bytes: u64,
    pub offset: u64,
    pub client: u32,
    pub memory: u32,
    pub uuid: [u8; 16usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct gct_uvm_memory {
    pub file: *mut kernel::ffi::c_void,
    pub words: *mut kernel::ffi::c_void,
    pub address: u64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct gct_uvm_operations {
    pub map: ::core::option::Option<
        unsafe extern "C" fn(
            space: *const gct_uvm_space,
            bytes: u64,
            writes: u32,
            waits: u32,
            memory: *mut gct_uvm_memory,
        ) -> u32,
    >,
    pub unmap: ::core::option::Option<unsafe extern "C" fn(memory: *const gct_uvm_memory)>,
    pub evict: ::core::option::Option<
        unsafe extern "C" fn(
            uuid: *const u8,
            gpu: *mut kernel::ffi::c_void,
            victim: u32,
            keeps: u32,
        ) -> u32,
    >,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct gct_uvm_holder {
    pub file: *mut kernel::ffi::c_void,
    pub held: *mut kernel::ffi::c_void,
    pub lock: *mut kernel::ffi::c_void,
}
#[repr(C)]
#[derive(Debug)]
pub struct gct_worker {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug)]
pub struct gct_bell_gpu {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug)]
pub struct gct_ear {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug)]
pub struct gct_sheet {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug)]
pub struct gct_turn {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct gct_process {
    pub tgid: u32,
    pub reserved: u32,
    pub start_time_ns: u64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct gct_serving {
    pub bytes: u32,
    pub written: u32,
    pub file: u64,
}
#[repr(C)]
#[derive(Debug)]
pub struct gct_map {
    _unused: [u8; 0],
}
unsafe extern "C" {
    pub fn gct_init() -> kernel::ffi::c_int;
    pub fn gct_exit();
    pub fn gct_gpu_add(gpu: *const gct_gpu);
    pub fn gct_gpu_uuid(gpu_id: u32, uuid: *const u8);
    pub fn gct_gpu_remove(gpu_id: u32);
    pub fn gct_gpu_resumed(gpu_id: u32);
    pub fn gct_log_line(line: *const kernel::ffi::c_char, size: u32);
    pub fn gct_file_open(file: *mut *mut kernel::ffi::c_void) -> kernel::ffi::c_int;
    pub fn gct_file_close(file: *mut kernel::ffi::c_void);
    pub fn gct_memory_kept(
        file: *mut *mut kernel::ffi::c_void,
        gpu_id: u32,
        index: u32,
        client: u32,
        object: u32,
        bytes: u64,
    ) -> kernel::ffi::c_int;
    pub fn gct_memory_size(file: *mut kernel::ffi::c_void, index: u32, keeper: u32, kept: u32);
    pub fn gct_ioctl_enter(
        file: *mut kernel::ffi::c_void,
        escape: u32,
        arg: *mut kernel::ffi::c_void,
        size: u32,
        call: *mut gct_call,
    ) -> kernel::ffi::c_int;
    pub fn gct_ioctl_leave(
        file: *mut kernel::ffi::c_void,
        escape: u32,
        arg: *mut kernel::ffi::c_void,
        size: u32,
        call: *mut gct_call,
        result: u32,
    );
    pub static mut gct_servings: u32;
    pub fn gct_serve_read(
        to: *mut kernel::ffi::c_void,
        from: *const kernel::ffi::c_void,
        n: u32,
    ) -> kernel::ffi::c_int;
    pub fn gct_serve_write(
        to: *const kernel::ffi::c_void,
        from: *const kernel::ffi::c_void,
        n: u32,
    );
    pub fn gct_serve_file(
        file: *mut kernel::ffi::c_void,
        private: *mut kernel::ffi::c_void,
    ) -> kernel::ffi::c_int;
    pub fn gct_uvm_gpu_add(uuid: *const u8, roots: u32) -> *mut kernel::ffi::c_void;
    pub fn gct_uvm_gpu_remove(gpu: *mut kernel::ffi::c_void);
    pub fn gct_uvm_account_open(
        gpu: *mut kernel::ffi::c_void,
        file: *mut kernel::ffi::c_void,
    ) -> u32;
    pub fn gct_uvm_account_close(gpu: *mut kernel::ffi::c_void, account: u32);
    pub fn gct_uvm_settle(gpu: *mut kernel::ffi::c_void, account: u32);
    pub fn gct_uvm_reserve(
        gpu: *mut kernel::ffi::c_void,
        account: u32,
        tried: u32,
        victim: *mut u32,
    ) -> u32;
    pub fn gct_uvm_reserve_table(
        gpu: *mut kernel::ffi::c_void,
        account: u32,
        tried: u32,
        victim: *mut u32,
    ) -> u32;
    pub fn gct_uvm_cancel(gpu: *mut kernel::ffi::c_void, account: u32);
    pub fn gct_uvm_evicted(gpu: *mut kernel::ffi::c_void, root: u32);
    pub fn gct_uvm_instead(gpu: *mut kernel::ffi::c_void, root: u32, tried: u32) -> u32;
    pub fn gct_uvm_shortage(gpu: *mut kernel::ffi::c_void, account: u32, failed: u32) -> u32;
    pub fn gct_uvm_host_charge(
        gpu: *mut kernel::ffi::c_void,
        account: u32,
        bytes: u64,
        for_owner: u32,
    ) -> u64;
    pub fn gct_uvm_host_uncharge(charge: u64, bytes: u64);
    pub fn gct_uvm_take(gpu: *mut kernel::ffi::c_void, root: u32, account: u32);
    pub fn gct_uvm_take_table(gpu: *mut kernel::ffi::c_void, root: u32, account: u32);
    pub fn gct_uvm_drop(gpu: *mut kernel::ffi::c_void, root: u32);
    pub fn gct_uvm_holder(gpu: *mut kernel::ffi::c_void, root: u32) -> u32;
    pub fn gct_uvm_use(gpu: *mut kernel::ffi::c_void, root: u32, used: u32);
    pub fn gct_uvm_pick(
        gpu: *mut kernel::ffi::c_void,
        victim: u32,
        can_leave: ::core::option::Option<
            unsafe extern "C" fn(pmm: *mut kernel::ffi::c_void, root: u32) -> u32,
        >,
        pmm: *mut kernel::ffi::c_void,
    ) -> u32;
    pub fn gct_bell_mapped(bell: *mut kernel::ffi::c_void);
    pub fn gct_bell_close(bell: *mut kernel::ffi::c_void);
    pub fn gct_pane_fault(pane: *mut kernel::ffi::c_void, vma: *mut kernel::ffi::c_void) -> u32;
    pub fn gct_pane_mapped(pane: *mut kernel::ffi::c_void, vma: *mut kernel::ffi::c_void);
    pub fn gct_pane_close(pane: *mut kernel::ffi::c_void);
    pub fn gct_maps_enter(
        maps: *mut *mut kernel::ffi::c_void,
        file: *mut kernel::ffi::c_void,
        escape: u32,
        arg: *const kernel::ffi::c_void,
        size: u32,
        call: *mut gct_call,
    ) -> kernel::ffi::c_int;
    pub fn gct_maps_leave(
        maps: *mut kernel::ffi::c_void,
        escape: u32,
        arg: *const kernel::ffi::c_void,
        size: u32,
        call: *mut gct_call,
        result: u32,
    );
    pub fn gct_maps_close(maps: *mut kernel::ffi::c_void, file: *mut kernel::ffi::c_void);
    pub fn gct_map_fault(map: *mut kernel::ffi::c_void, flags: u32) -> u32;
    pub fn gct_map_by_fault(map: *mut kernel::ffi::c_void) -> kernel::ffi::c_int;
    pub fn gct_map_mapped(
        map: *mut kernel::ffi::c_void,
        vma: *mut kernel::ffi::c_void,
    ) -> kernel::ffi::c_int;
    pub fn gct_map_hides(map: *mut kernel::ffi::c_void) -> kernel::ffi::c_int;
    pub fn gct_map_close(map: *mut kernel::ffi::c_void);
    pub static mut gct_owning: u32;
    pub fn gct_uvm_start(operations: *const gct_uvm_operations);
    pub fn gct_uvm_stop();
    pub fn gct_uvm_hold(descriptor: i32, holder: *mut gct_uvm_holder) -> kernel::ffi::c_int;
    pub fn gct_uvm_release(holder: *mut gct_uvm_holder);
    pub fn gct_uvm_registered(
        file: *mut kernel::ffi::c_void,
        space: *const gct_uvm_space,
    ) -> kernel::ffi::c_int;
    pub fn gct_uvm_gone(file: *mut kernel::ffi::c_void, number: u64, uuid: *const u8);
    pub fn gct_uvm_is_lent(client: u32, memory: u32) -> kernel::ffi::c_int;
    pub fn gct_uvm_mapped(file: *mut kernel::ffi::c_void, mapping: *const gct_uvm_mapping);
    pub fn gct_uvm_unmapped(
        file: *mut kernel::ffi::c_void,
        number: u64,
        address: u64,
        bytes: u64,
        uuid: *const u8,
    );
    pub fn gct_uvm_keep(
        control: *mut kernel::ffi::c_void,
        space: *mut kernel::ffi::c_void,
        client: u32,
        object: u32,
        name: *mut u32,
    ) -> u32;
    pub fn gct_uvm_let_go(space: *mut kernel::ffi::c_void, name: u32);
    pub static gct_debugfs_fops: file_operations;
    pub fn gct_helper_is_live() -> bool;
    pub fn gct_helper_enable_hooks(on: bool);
    pub fn gct_helper_door_open() -> kernel::ffi::c_int;
    pub fn gct_helper_door_close();
    pub fn gct_helper_random() -> u64;
    pub fn gct_helper_process_of(task: *const task_struct, out: *mut gct_process);
    pub fn gct_helper_find_task(pid: u32) -> *mut task_struct;
    pub fn gct_helper_is_killed() -> bool;
    pub fn gct_helper_process_dead(task: *const task_struct) -> bool;
    pub fn gct_helper_visible_tgid(process: *const gct_process) -> u32;
    pub fn gct_helper_pay_begin(
        process: *const gct_process,
        payer: *mut *mut kernel::ffi::c_void,
    ) -> bool;
    pub fn gct_helper_pay_end(payer: *mut kernel::ffi::c_void);
    pub fn gct_helper_cgroup_path(out: *mut kernel::ffi::c_char, size: u32) -> kernel::ffi::c_int;
    pub fn gct_helper_user() -> u32;
    pub fn gct_helper_trace_start() -> kernel::ffi::c_int;
    pub fn gct_helper_trace_stop();
    pub fn gct_helper_rm_begin(interruptible: bool) -> kernel::ffi::c_int;
    pub fn gct_helper_rm_end();
    pub fn gct_helper_rm_control(
        client: u32,
        object: u32,
        command: u32,
        params: *mut kernel::ffi::c_void,
        size: u32,
    ) -> u32;
    pub fn gct_helper_rm_memory_bytes(client: u32, memory: u32) -> u64;
    pub fn gct_helper_serve(call: *mut gct_call, address: u64, bytes: u16, most: u16) -> *const u8;
    pub fn gct_helper_serve_end(call: *mut gct_call, out: *mut gct_serving) -> *mut u8;
    pub fn gct_helper_serve_free(copy: *mut u8);
    pub fn gct_helper_serve_swap(call: *mut gct_call, offset: u32, bytes: u32, value: u64) -> bool;
    pub fn gct_helper_serve_watch(call: *mut gct_call);
    pub fn gct_helper_own(on: bool);
    pub fn gct_helper_rm_try_begin() -> bool;
    pub fn gct_helper_gpu_hold(gpu_id: u32) -> kernel::ffi::c_int;
    pub fn gct_helper_gpu_release(gpu_id: u32);
    pub fn gct_helper_rm_root(params: *mut kernel::ffi::c_void) -> u32;
    pub fn gct_helper_rm_alloc(
        client: u32,
        parent: u32,
        object: u32,
        class_number: u32,
        params: *mut kernel::ffi::c_void,
    ) -> u32;
    pub fn gct_helper_rm_free(client: u32, object: u32) -> u32;
    pub fn gct_helper_rm_dup(
        client: u32,
        parent: u32,
        object: u32,
        source_client: u32,
        source: u32,
    ) -> u32;
    pub fn gct_helper_rm_map(
        client: u32,
        device: u32,
        memory: u32,
        offset: u64,
        bytes: u64,
        writes: bool,
    ) -> *mut kernel::ffi::c_void;
    pub fn gct_helper_rm_map_gpu(
        client: u32,
        device: u32,
        range: u32,
        memory: u32,
        bytes: u64,
        flags: u32,
        address: *mut u64,
    ) -> u32;
    pub fn gct_helper_uvm_map(
        space: *const gct_uvm_space,
        bytes: u64,
        writes: u32,
        waits: u32,
        memory: *mut gct_uvm_memory,
    ) -> u32;
    pub fn gct_helper_shadows_cancel();
    pub fn gct_helper_uvm_unmap(memory: *const gct_uvm_memory);
    pub fn gct_helper_uvm_evict(
        uuid: *const u8,
        gpu: *mut kernel::ffi::c_void,
        victim: u32,
        keeps: u32,
    ) -> u32;
    pub fn gct_helper_queue_new(name: *const kernel::ffi::c_char) -> *mut workqueue_struct;
    pub fn gct_helper_queue_drain(queue: *mut workqueue_struct);
    pub fn gct_helper_queue_free(queue: *mut workqueue_struct);
    pub fn gct_helper_read32(address: *const kernel::ffi::c_void) -> u32;
    pub fn gct_helper_write32(address: *mut kernel::ffi::c_void, value: u32);
    pub fn gct_helper_read64(address: *const kernel::ffi::c_void) -> u64;
    pub fn gct_helper_write64(address: *mut kernel::ffi::c_void, value: u64);
    pub fn gct_helper_read_words(to: *mut u32, from: *const kernel::ffi::c_void, count: u32);
    pub fn gct_helper_write_words(to: *mut kernel::ffi::c_void, from: *const u32, count: u32);
    pub fn gct_helper_ring(
        put_address: *mut kernel::ffi::c_void,
        put: u32,
        doorbell: *mut kernel::ffi::c_void,
        token: u32,
    );
    pub fn gct_helper_worker_start(gpu_id: u32, data: *mut kernel::ffi::c_void) -> *mut gct_worker;
    pub fn gct_helper_worker_wake(worker: *mut gct_worker);
    pub fn gct_helper_cpus_online(list: *const u8, length: u32) -> kernel::ffi::c_int;
    pub fn gct_helper_worker_move(worker: *mut gct_worker, list: *const u8, length: u32);
    pub fn gct_helper_worker_cost(worker: *mut gct_worker, ran_ns: *mut u64, sleeps: *mut u64);
    pub fn gct_helper_worker_stop(worker: *mut gct_worker);
    pub fn gct_helper_ear_new() -> *mut gct_ear;
    pub fn gct_helper_ear_put(ear: *mut gct_ear);
    pub fn gct_helper_ear_listen(ear: *mut gct_ear, listens: bool);
    pub fn gct_helper_ear_hears(ear: *const gct_ear) -> bool;
    pub fn gct_helper_ear_rings(ear: *const gct_ear) -> u32;
    pub fn gct_helper_ear_missed(ear: *mut gct_ear, rings: u32);
    pub fn gct_helper_bell_follow(descriptor: i32, file: u64, ear: *mut gct_ear);
    pub fn gct_helper_sheet_new(gpu_id: u32) -> *mut gct_sheet;
    pub fn gct_helper_sheet_put(sheet: *mut gct_sheet);
    pub fn gct_helper_pane_follow(descriptor: i32, file: u64, sheet: *mut gct_sheet, first: u64);
    pub fn gct_helper_sheet_give_up(sheet: *mut gct_sheet);
    pub fn gct_helper_sheet_page(sheet: *mut gct_sheet, number: u64) -> *mut kernel::ffi::c_void;
    pub fn gct_helper_sheet_forget(sheet: *mut gct_sheet, number: u64);
    pub fn gct_helper_turn_begin(
        one: *mut gct_sheet,
        other: *mut gct_sheet,
        gpu_id: u32,
    ) -> *mut gct_turn;
    pub fn gct_helper_turn_show(sheet: *mut gct_sheet, number: u64, shown: bool);
    pub fn gct_helper_turn_end(turn: *mut gct_turn);
    pub fn gct_helper_worker_close_bells(worker: *mut gct_worker);
    pub fn gct_helper_pauses_in(ns: u64);
    pub fn gct_helper_pauses_cancel();
    pub fn gct_helper_now() -> u64;
    pub fn gct_helper_bells_exit();
    pub fn gct_file_found(
        descriptor: i32,
        file: u64,
        held: *mut *mut kernel::ffi::c_void,
    ) -> *mut kernel::ffi::c_void;
    pub fn gct_bell_gpu(id: u32) -> *mut gct_bell_gpu;
    pub fn gct_bells_begin(gpu: *mut gct_bell_gpu, worker: *mut gct_worker);
    pub fn gct_bells_end(gpu: *mut gct_bell_gpu, worker: *mut gct_worker);
    pub fn gct_bells_closed(gpu: *const gct_bell_gpu) -> bool;
    pub fn gct_bells_close(gpu: *mut gct_bell_gpu);
    pub fn gct_helper_map_new(governed: bool) -> *mut gct_map;
    pub fn gct_helper_map_get(map: *mut gct_map);
    pub fn gct_helper_map_put(map: *mut gct_map);
    pub fn gct_helper_map_is_found(map: *const gct_map) -> bool;
    pub fn gct_helper_map_is_closed(map: *const gct_map) -> bool;
    pub fn gct_helper_map_change(map: *mut gct_map, state: u32);
    pub fn gct_serve_offer(call: *mut gct_call, map: *mut gct_map) -> bool;
    pub fn gct_map_attach(map: *mut gct_map, file: *mut kernel::ffi::c_void) -> kernel::ffi::c_int;
    pub fn gct_debugfs_show(
        seq: *mut seq_file,
        unused: *mut kernel::ffi::c_void,
    ) -> kernel::ffi::c_int;
    pub fn gct_debugfs_write(
        file: *mut file,
        from: *const kernel::ffi::c_char,
        count: usize,
        offset: *mut i64,
    ) -> isize;
    pub fn gct_door_call(command: u32, request: usize, rights: u32) -> kernel::ffi::c_int;
    pub fn gct_trace_fork(parent: *const gct_process, child: *const gct_process) -> bool;
    pub fn gct_trace_exit(process: *const gct_process);
    pub fn gct_worker_round(data: *mut kernel::ffi::c_void, now_ns: u64, signs: u32) -> u64;
    pub fn gct_pauses_due();
    pub fn gct_shadows_due();
}
