// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tests that exported memory stays charged to its owner.

use crate::gpus::{me, refused, session, ENGINE};
use crate::tree::{eventually, usage};
use gct_ktap::{same, skipped, During, Outcome, Stop, Test};
use rm_client::{numbers, Control, Error, Gpu, Handle, Memory};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[Test] = &[
    ("hostile_export_keeps_what_is_freed", exported),
    ("hostile_import_that_failed", imported_read_only),
    ("hostile_exports_by_place", exported_by_place),
    ("hostile_dma_buf_keeps_what_is_freed", dma_buf),
    ("hostile_export_beyond_the_names", || {
        refused(exported_beyond_names)
    }),
    ("hostile_dma_buf_beyond_the_names", || {
        refused(dma_buf_beyond_names)
    }),
];

const MEGABYTE: u64 = 1 << 20;

/// Names that an object may have, `ALIASES_MAX` of gct_core.
const NAMES: usize = 1024;

/// Returns the device memory charged to this process.
fn memory() -> Result<Option<u64>, Stop> {
    Ok(usage(&me(), 0)?.and_then(|usage| usage.memory))
}

/// Returns the device memory charged to this process, less some.
fn memory_less(megabytes: u64) -> Result<Option<u64>, Stop> {
    Ok(memory()?.map(|now| now.saturating_sub(megabytes * MEGABYTE)))
}

/// Exports the first bytes of an object as a dma-buf.
fn buffer_of(gpu: &Gpu, object: Handle, bytes: u64) -> Result<OwnedFd, Stop> {
    match gpu.dma_buf(object, bytes) {
        Err(Error::Status(numbers::NOT_SUPPORTED)) => {
            Err(skipped("the driver makes no dma-buf of this GPU"))
        }
        buffer => Ok(buffer.during("dma-buf")?),
    }
}

/// Checks that memory exported to a file stays charged until the file is closed and no client has
/// it.
fn exported() -> Outcome {
    let (session, other) = (session(0)?, session(0)?);
    session.group(ENGINE)?;
    let gpu = session.gpu();
    eventually("directory", &true, || Ok(memory()?.is_some()))?;
    let before = memory()?;
    let held = gpu.alloc_memory(Memory::Device, 16 * MEGABYTE)?;
    let file = Control::open()?;
    gpu.client()
        .export(gpu.device(), held, &file)
        .during("export")?;
    gpu.client().free(held)?;
    same("in the file", memory_less(16)?, before)?;
    let client = other.gpu().client();
    let name = client
        .import(other.gpu().device(), &file)
        .during("import")?;
    same("imported", memory_less(16)?, before)?;
    drop(file);
    eventually("file closed", &before, || memory_less(16))?;
    client.free(name)?;
    same("freed", memory()?, before)?;
    // A file from which no client imports.
    let held = gpu.alloc_memory(Memory::Device, 8 * MEGABYTE)?;
    let file = Control::open()?;
    gpu.client()
        .export(gpu.device(), held, &file)
        .during("export")?;
    gpu.client().free(held)?;
    same("in the file", memory_less(8)?, before)?;
    drop(file);
    eventually("closed", &before, memory)
}

/// Checks that memory stays charged to its owner while a client has it that has imported it with
/// parameters that cannot be written back.
fn imported_read_only() -> Outcome {
    let (session, other) = (session(0)?, session(0)?);
    session.group(ENGINE)?;
    let gpu = session.gpu();
    eventually("directory", &true, || Ok(memory()?.is_some()))?;
    let before = memory()?;
    let held = gpu.alloc_memory(Memory::Device, 16 * MEGABYTE)?;
    let charged = memory()?;
    let file = Control::open()?;
    let exported = gpu.client().export(gpu.device(), held, &file);
    exported.during("export")?;
    let client = other.gpu().client();
    let imported = client.import_read_only(other.gpu().device(), &file);
    let name = imported.during("import")?;
    gpu.client().free(held)?;
    drop(file);
    // Nobody else has it, and the file is closed some time later.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(1) {
        same("imported", memory()?, charged)?;
    }
    client.free(name)?;
    eventually("freed", &before, memory)
}

/// Checks that memory of a dma-buf stays charged until the dma-buf is freed.
fn dma_buf() -> Outcome {
    let session = session(0)?;
    session.group(ENGINE)?;
    let gpu = session.gpu();
    eventually("directory", &true, || Ok(memory()?.is_some()))?;
    let before = memory()?;
    let held = gpu.alloc_memory(Memory::Device, 16 * MEGABYTE)?;
    let buffer = buffer_of(gpu, held, 16 * MEGABYTE)?;
    gpu.client().free(held)?;
    same("in the dma-buf", memory_less(16)?, before)?;
    drop(buffer);
    eventually("closed", &before, memory)
}

/// Adds further names to an object, as many as it may have. Returns all of them.
fn all_names(gpu: &Gpu, object: Handle) -> Result<Vec<Handle>, Stop> {
    let client = gpu.client();
    let mut names = vec![object];
    while names.len() < NAMES {
        names.push(client.dup(gpu.device(), client, object).during("dup")?);
    }
    Ok(names)
}

/// Checks that memory which cannot get a name in a file stays charged until the file is closed.
fn exported_beyond_names() -> Outcome {
    let session = session(0)?;
    session.group(ENGINE)?;
    let gpu = session.gpu();
    eventually("directory", &true, || Ok(memory()?.is_some()))?;
    let before = memory()?;
    let held = gpu.alloc_memory(Memory::Device, 16 * MEGABYTE)?;
    let names = all_names(gpu, held)?;
    same("names", memory_less(16)?, before)?;
    let file = Control::open()?;
    gpu.client()
        .export(gpu.device(), held, &file)
        .during("export")?;
    same("the names and the file", memory_less(32)?, before)?;
    for name in names {
        gpu.client().free(name)?;
    }
    same("in the file", memory_less(16)?, before)?;
    drop(file);
    eventually("closed", &before, memory)
}

/// Checks the same of a dma-buf. All of the memory is charged, though only a part is exported.
fn dma_buf_beyond_names() -> Outcome {
    let session = session(0)?;
    session.group(ENGINE)?;
    let gpu = session.gpu();
    eventually("directory", &true, || Ok(memory()?.is_some()))?;
    let before = memory()?;
    let held = gpu.alloc_memory(Memory::Device, 16 * MEGABYTE)?;
    let names = all_names(gpu, held)?;
    let buffer = buffer_of(gpu, held, MEGABYTE)?;
    same("the names and the dma-buf", memory_less(32)?, before)?;
    for name in names {
        gpu.client().free(name)?;
    }
    same("in the dma-buf", memory_less(16)?, before)?;
    drop(buffer);
    eventually("closed", &before, memory)
}

/// Checks that a file has numbered places for objects. A new object replaces the one in its place.
fn exported_by_place() -> Outcome {
    let (session, other) = (session(0)?, session(0)?);
    session.group(ENGINE)?;
    let gpu = session.gpu();
    eventually("directory", &true, || Ok(memory()?.is_some()))?;
    let before = memory()?;
    let sizes = [1, 2, 4];
    let held: Result<Vec<Handle>, Stop> = sizes
        .iter()
        .map(|size| Ok(gpu.alloc_memory(Memory::Device, size * MEGABYTE)?))
        .collect();
    let held = held?;
    let file = Control::open()?;
    let client = gpu.client();
    client
        .export_many(gpu.device(), &held[..2], &file, 1)
        .during("export")?;
    // The third replaces the second.
    client
        .export_many(gpu.device(), &held[2..], &file, 2)
        .during("export")?;
    for object in &held {
        client.free(*object)?;
    }
    same("the first and the third", memory_less(5)?, before)?;
    let importer = other.gpu().client();
    let names = importer
        .import_two(other.gpu().device(), &file, 1)
        .during("import")?;
    drop(file);
    eventually("imported", &before, || memory_less(5))?;
    importer.free(names[0])?;
    same("the third", memory_less(4)?, before)?;
    importer.free(names[1])?;
    same("nothing", memory()?, before)
}
