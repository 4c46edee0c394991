// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Copies memory: in loops that are measured, and at random to be checked.

use crate::gpu::Gpu;
use anyhow::{ensure, Result};
use clap::ValueEnum;
use core::ffi::c_void;
use cudarc::driver::sys::{self, CUmemorytype, CUresult};
use cudarc::driver::CudaStream;
use fastrand::Rng;
use serde::Serialize;
use std::sync::Arc;

/// From where to where a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Direction {
    /// From the host to the device
    H2d,
    /// From the device to the host
    D2h,
    /// On the device
    D2d,
}

/// Returns an error for every other status than success.
fn succeeded(status: CUresult) -> Result<()> {
    ensure!(status == CUresult::CUDA_SUCCESS, "{status:?}");
    Ok(())
}

/// Host memory, pinned or not.
enum Host {
    Pinned(*mut u8, usize),
    Pageable(Vec<u8>),
}

impl Host {
    fn new(bytes: usize, is_pinned: bool) -> Result<Self> {
        if !is_pinned {
            return Ok(Self::Pageable(vec![0; bytes]));
        }
        let mut at: *mut c_void = core::ptr::null_mut();
        // SAFETY: the call writes to a variable of this function; a context is current.
        succeeded(unsafe { sys::cuMemAllocHost_v2(&mut at, bytes) })?;
        let at: *mut u8 = at.cast();
        // SAFETY: `bytes` bytes that nothing uses yet.
        unsafe { at.write_bytes(0, bytes) };
        Ok(Self::Pinned(at, bytes))
    }

    /// Returns the bytes. No copy from or to them is in flight.
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            // SAFETY: allocated in `new` with this size, initialised there, and freed on drop.
            Self::Pinned(at, bytes) => unsafe { core::slice::from_raw_parts_mut(*at, *bytes) },
            Self::Pageable(bytes) => bytes,
        }
    }

    fn address(&mut self) -> *mut c_void {
        self.bytes().as_mut_ptr().cast()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Self::Pinned(at, _) = self {
            // SAFETY: allocated in `new`. A failure leaves memory that the process's end frees.
            let _ = unsafe { sys::cuMemFreeHost(at.cast()) };
        }
    }
}

/// Device memory.
struct Device(sys::CUdeviceptr);

impl Device {
    fn new(bytes: usize) -> Result<Self> {
        let mut at = 0;
        // SAFETY: the call writes to a variable of this function; a context is current.
        succeeded(unsafe { sys::cuMemAlloc_v2(&mut at, bytes) })?;
        Ok(Self(at))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`; streams that used it were synchronised.
        let _ = unsafe { sys::cuMemFree_v2(self.0) };
    }
}

/// A copy that a loop repeats, from and to pinned memory.
pub(crate) struct Copy {
    direction: Direction,
    bytes: usize,
    host: Option<Host>,
    device: Device,
    other: Option<Device>,
}

impl Copy {
    pub(crate) fn new(direction: Direction, bytes: usize) -> Result<Self> {
        ensure!(bytes > 0, "--bytes must be at least 1");
        let is_within = direction == Direction::D2d;
        Ok(Self {
            direction,
            bytes,
            host: (!is_within).then(|| Host::new(bytes, true)).transpose()?,
            device: Device::new(bytes)?,
            other: is_within.then(|| Device::new(bytes)).transpose()?,
        })
    }

    /// Submits the copy.
    pub(crate) fn submit(&mut self, stream: &Arc<CudaStream>) -> Result<()> {
        let (bytes, device, stream) = (self.bytes, self.device.0, stream.cu_stream());
        let host = self
            .host
            .as_mut()
            .map_or(core::ptr::null_mut(), Host::address);
        let other = self.other.as_ref().map_or(0, |other| other.0);
        // SAFETY: both ends have `bytes` bytes, and live until the stream was synchronised: each
        // loop does that before it drops the copy.
        succeeded(unsafe {
            match self.direction {
                Direction::H2d => sys::cuMemcpyHtoDAsync_v2(device, host, bytes, stream),
                Direction::D2h => sys::cuMemcpyDtoHAsync_v2(host, device, bytes, stream),
                Direction::D2d => sys::cuMemcpyDtoDAsync_v2(other, device, bytes, stream),
            }
        })
    }
}

/// The result of copies at random.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    copies: u64,
    bytes: u64,
    pinned: u64,
    /// Copies of several lines.
    pitched: u64,
    /// Bytes that arrived wrong, or were changed beside a copy.
    pub(crate) wrong: u64,
}

/// Bytes before and behind the destination on the device that must stay.
const MARGIN: usize = 4096;
const UNTOUCHED: u8 = 0xa5;

/// The shape of a copy: lines of `width` bytes, each `pitch` behind the last one.
#[derive(Clone, Copy)]
struct Shape {
    width: usize,
    height: usize,
    pitch: usize,
}

/// One end of a copy.
enum End {
    Host(*mut c_void),
    Device(sys::CUdeviceptr),
}

impl End {
    /// Returns its kind, and its address as CUDA has it of each kind.
    fn parts(&self) -> (CUmemorytype, *mut c_void, sys::CUdeviceptr) {
        match *self {
            Self::Host(at) => (CUmemorytype::CU_MEMORYTYPE_HOST, at, 0),
            Self::Device(at) => {
                let nowhere = core::ptr::null_mut();
                (CUmemorytype::CU_MEMORYTYPE_DEVICE, nowhere, at)
            }
        }
    }
}

/// Copies lines from `from`, where they follow each other, to `to`, or the other way round.
fn copy(from: (&End, usize), to: (&End, usize), shape: Shape, stream: &CudaStream) -> Result<()> {
    let (from_kind, from_host, from_device) = from.0.parts();
    let (to_kind, to_host, to_device) = to.0.parts();
    let what = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: from_kind,
        srcHost: from_host,
        srcDevice: from_device,
        srcArray: core::ptr::null_mut(),
        srcPitch: from.1,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: to_kind,
        dstHost: to_host,
        dstDevice: to_device,
        dstArray: core::ptr::null_mut(),
        dstPitch: to.1,
        WidthInBytes: shape.width,
        Height: shape.height,
    };
    let bytes = shape.width * shape.height;
    // SAFETY: the caller's ends have the bytes of the shape, and live until it has synchronised.
    succeeded(unsafe {
        match (shape.height, from.0, to.0) {
            (1, End::Host(host), End::Device(device)) => {
                sys::cuMemcpyHtoDAsync_v2(*device, *host, bytes, stream.cu_stream())
            }
            (1, End::Device(device), End::Host(host)) => {
                sys::cuMemcpyDtoHAsync_v2(*host, *device, bytes, stream.cu_stream())
            }
            (1, End::Device(from), End::Device(to)) => {
                sys::cuMemcpyDtoDAsync_v2(*to, *from, bytes, stream.cu_stream())
            }
            _ => sys::cuMemcpy2DAsync_v2(&what, stream.cu_stream()),
        }
    })
}

/// Copies random bytes to the device, on the device and back, `rounds` times, and checks them.
pub(crate) fn exact(gpu: &Gpu, seed: u64, rounds: u32, mib: usize) -> Result<Report> {
    ensure!(mib > 0, "--mib must be at least 1");
    let most = mib << 20;
    let mut random = Rng::with_seed(seed);
    let streams = [gpu.context.new_stream()?, gpu.context.new_stream()?];
    let room = 2 * most + 2 * MARGIN;
    let (near, far) = (Device::new(room)?, Device::new(room)?);
    let mut report = Report::default();
    for _ in 0..rounds {
        let stream = &streams[random.usize(..2)];
        let shape = random_shape(&mut random, most);
        let bytes = shape.width * shape.height;
        let span = shape.pitch * (shape.height - 1) + shape.width;
        let pinned = [random.bool(), random.bool()];
        let mut source = Host::new(bytes, pinned[0])?;
        let mut there = Host::new(span + 2 * MARGIN, pinned[1])?;
        random.fill(source.bytes());
        let at = random.usize(..MARGIN) as u64;
        // SAFETY: `far` has `room` bytes.
        succeeded(unsafe { sys::cuMemsetD8Async(far.0, UNTOUCHED, room, stream.cu_stream()) })?;
        let first = End::Device(near.0 + at);
        let second = End::Device(far.0 + MARGIN as u64);
        let host = End::Host(source.address());
        copy((&host, shape.width), (&first, shape.pitch), shape, stream)?;
        copy((&first, shape.pitch), (&second, shape.pitch), shape, stream)?;
        let all = Shape {
            width: span + 2 * MARGIN,
            height: 1,
            pitch: 0,
        };
        let back = End::Host(there.address());
        copy((&End::Device(far.0), 0), (&back, 0), all, stream)?;
        stream.synchronize()?;
        report.wrong += wrong(source.bytes(), there.bytes(), shape);
        report.copies += 3;
        report.bytes += 3 * bytes as u64;
        report.pinned += pinned.iter().map(|pinned| u64::from(*pinned)).sum::<u64>();
        report.pitched += 2 * u64::from(shape.height > 1);
    }
    Ok(report)
}

/// Returns a random shape of `most` bytes at most. Small ones are as likely as large ones.
fn random_shape(random: &mut Rng, most: usize) -> Shape {
    let bytes = (random.usize(..=most) >> random.u32(..16)).max(1);
    if random.bool() {
        return Shape {
            width: bytes,
            height: 1,
            pitch: bytes,
        };
    }
    let height = random.usize(1..=bytes.min(2000));
    let width = bytes / height;
    Shape {
        width,
        height,
        pitch: width + random.usize(..=width.min(512)),
    }
}

/// Counts bytes of `there` that are not those of `source` in their lines, or were changed.
fn wrong(source: &[u8], there: &[u8], shape: Shape) -> u64 {
    let (before, rest) = there.split_at(MARGIN);
    let mut wrong = before.iter().filter(|byte| **byte != UNTOUCHED).count();
    let mut lines = source.chunks(shape.width);
    for line in rest.chunks(shape.pitch) {
        let expected = lines.next().unwrap_or_default();
        let differs = |(at, byte): (usize, &u8)| *byte != *expected.get(at).unwrap_or(&UNTOUCHED);
        wrong += line.iter().enumerate().filter(|at| differs(*at)).count();
    }
    wrong as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_bytes_are_found_wherever_they_are() {
        let shape = Shape {
            width: 3,
            height: 2,
            pitch: 5,
        };
        let source = [1, 2, 3, 4, 5, 6];
        let mut there = vec![UNTOUCHED; MARGIN];
        there.extend([1, 2, 3, UNTOUCHED, UNTOUCHED, 4, 5, 6]);
        there.extend([UNTOUCHED; MARGIN]);
        assert_eq!(wrong(&source, &there, shape), 0);
        for at in [
            0,
            MARGIN,
            MARGIN + 3,
            MARGIN + 7,
            MARGIN + 8,
            2 * MARGIN + 7,
        ] {
            let mut other = there.clone();
            other[at] ^= 1;
            assert_eq!(wrong(&source, &other, shape), 1, "{at}");
        }
    }

    #[test]
    fn shapes_fit() {
        let mut random = Rng::with_seed(1);
        for _ in 0..1000 {
            let shape = random_shape(&mut random, 1 << 20);
            assert!(shape.width >= 1 && shape.width * shape.height <= 1 << 20);
            assert!(shape.pitch >= shape.width && shape.pitch <= 2 * shape.width);
        }
    }
}
