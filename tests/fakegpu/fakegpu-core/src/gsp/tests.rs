// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plays the driver: boots GSP through the registers and calls it.

use crate::abi;
use crate::gpu::{Aperture, Gpu};
use crate::platform::{GuestMemory, Platform};
use crate::regs::*;
use crate::testing::{Lines, World};
use crate::ChipDescription;
use proptest::prelude::*;
use std::sync::Arc;

/// Where the test puts its structures in guest memory.
const PARAMETERS: u64 = 0x1000;
const REGIONS: u64 = 0x2000;
const ARGUMENTS: u64 = 0x3000;
const SHARED: u64 = 0x10_0000;
const COMMAND: u64 = 0x1000;
const STATUS: u64 = 0x4_1000;
const PAGE: u64 = 4096;

/// Bytes before the payload in an element.
const PAYLOAD: usize = 0x50;

struct Driver {
    gpu: Gpu,
    world: Arc<World>,
    lines: Arc<Lines>,
    sent: u32,
    received: u32,
}

impl Driver {
    fn new() -> Self {
        let world = World::new();
        let lines = Arc::new(Lines::default());
        let platform = Platform {
            recorder: lines.clone(),
            ..world.platform()
        };
        let gpu = Gpu::new(ChipDescription::gh100(), 3, platform);
        Self {
            gpu,
            world,
            lines,
            sent: 0,
            received: 0,
        }
    }

    fn store(&self, address: u64, bytes: &[u8]) {
        GuestMemory::write(&*self.world, address, bytes).unwrap();
    }

    fn load(&self, address: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        GuestMemory::read(&*self.world, address, &mut bytes).unwrap();
        bytes
    }

    fn register(&mut self, offset: u32) -> u32 {
        let mut bytes = [0; 4];
        self.gpu
            .read(Aperture::Registers, u64::from(offset), &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn set_register(&mut self, offset: u32, value: u32) {
        self.gpu
            .write(Aperture::Registers, u64::from(offset), &value.to_le_bytes());
    }

    /// Prepares queues and arguments, and sends the COT message.
    fn boot(&mut self) {
        for page in 0..129 {
            self.store(SHARED + 8 * page, &(SHARED + PAGE * page).to_le_bytes());
        }
        let field = |field: abi::Field| SHARED + COMMAND + field.offset() as u64;
        self.store(field(abi::msgqTxHeader::msgCount), &63u32.to_le_bytes());
        self.store(field(abi::msgqTxHeader::writePtr), &0u32.to_le_bytes());
        let mut parameters = vec![0; abi::GSP_FMC_BOOT_PARAMS::SIZE];
        abi::set(
            &mut parameters,
            abi::GSP_FMC_BOOT_PARAMS::gspRmParams_bootArgsOffset,
            REGIONS,
        )
        .unwrap();
        self.store(PARAMETERS, &parameters);
        let mut region = vec![0; abi::LibosMemoryRegionInitArgument::SIZE];
        let id = b"RMARGS"
            .iter()
            .fold(0, |id, byte| id << 8 | u64::from(*byte));
        abi::set(&mut region, abi::LibosMemoryRegionInitArgument::id8, id).unwrap();
        abi::set(
            &mut region,
            abi::LibosMemoryRegionInitArgument::pa,
            ARGUMENTS,
        )
        .unwrap();
        self.store(REGIONS, &region);
        use abi::MESSAGE_QUEUE_INIT_ARGUMENTS as Arguments;
        let mut arguments = vec![0; Arguments::SIZE];
        abi::set(&mut arguments, Arguments::sharedMemPhysAddr, SHARED).unwrap();
        abi::set(&mut arguments, Arguments::pageTableEntryCount, 129).unwrap();
        abi::set(&mut arguments, Arguments::cmdQueueOffset, COMMAND).unwrap();
        abi::set(&mut arguments, Arguments::statQueueOffset, STATUS).unwrap();
        self.store(ARGUMENTS, &arguments);
        let mut cot = vec![0; abi::NVDM_PAYLOAD_COT::SIZE];
        abi::set(
            &mut cot,
            abi::NVDM_PAYLOAD_COT::gspBootArgsSysmemOffset,
            PARAMETERS,
        )
        .unwrap();
        self.set_register(NV_PFSP_EMEMC::OFFSET, 1 << 24);
        for word in [0xc000_0000, 0x1410_de7e] {
            self.set_register(NV_PFSP_EMEMD::OFFSET, word);
        }
        for word in cot.chunks(4) {
            self.set_register(
                NV_PFSP_EMEMD::OFFSET,
                u32::from_le_bytes(word.try_into().unwrap()),
            );
        }
        self.set_register(NV_PFSP_QUEUE_TAIL::OFFSET, (4 + cot.len()) as u32);
        self.set_register(NV_PFSP_QUEUE_HEAD::OFFSET, 0);
        (self.sent, self.received) = (0, 0);
    }

    /// Queues a call of `function` and rings the doorbell. `length` goes into the header.
    fn send(&mut self, function: u32, payload: &[u8], length: usize) {
        let mut element = vec![0; PAGE as usize];
        let header = |field: abi::Field| field.at(abi::GSP_MSG_QUEUE_ELEMENT::rpc.offset());
        for (field, value) in [
            (abi::GSP_MSG_QUEUE_ELEMENT::elemCount, 1),
            (
                header(abi::rpc_message_header_v::function),
                u64::from(function),
            ),
            (
                header(abi::rpc_message_header_v::length),
                (length + abi::rpc_message_header_v::SIZE) as u64,
            ),
            (
                header(abi::rpc_message_header_v::sequence),
                u64::from(self.sent) + 1000,
            ),
        ] {
            abi::set(&mut element, field, value).unwrap();
        }
        element[PAYLOAD..PAYLOAD + payload.len()].copy_from_slice(payload);
        self.store(
            SHARED + COMMAND + PAGE * (1 + u64::from(self.sent % 63)),
            &element,
        );
        self.sent += 1;
        let write = SHARED + COMMAND + abi::msgqTxHeader::writePtr.offset() as u64;
        self.store(write, &(self.sent % 63).to_le_bytes());
        self.set_register(NV_PGSP_QUEUE_HEAD::OFFSET, 0);
    }

    /// Takes GSP's next record: function, result and payload.
    fn receive(&mut self) -> Option<(u32, u32, Vec<u8>)> {
        let write = self.load(
            SHARED + STATUS + abi::msgqTxHeader::writePtr.offset() as u64,
            4,
        );
        if u32::from_le_bytes(write.try_into().unwrap()) == self.received % 63 {
            return None;
        }
        let element = self.load(
            SHARED + STATUS + PAGE * (1 + u64::from(self.received % 63)),
            PAGE as usize,
        );
        self.received += 1;
        let header = |field: abi::Field| {
            abi::get_u32(&element, field.at(abi::GSP_MSG_QUEUE_ELEMENT::rpc.offset())).unwrap()
        };
        let function = header(abi::rpc_message_header_v::function);
        Some((
            function,
            header(abi::rpc_message_header_v::rpc_result),
            element[PAYLOAD..].to_vec(),
        ))
    }

    fn control(&mut self, client: u32, object: u32, command: u32, params: &[u8]) -> (u32, Vec<u8>) {
        use abi::rpc_gsp_rm_control_v as Call;
        let mut call = vec![0; Call::SIZE];
        for (field, value) in [
            (Call::hClient, client),
            (Call::hObject, object),
            (Call::cmd, command),
            (Call::paramsSize, params.len() as u32),
        ] {
            abi::set(&mut call, field, u64::from(value)).unwrap();
        }
        call.extend(params);
        self.send(abi::NV_VGPU_MSG_FUNCTION_GSP_RM_CONTROL, &call, call.len());
        let (_, _, answer) = self.receive().expect("a control is answered");
        let status = abi::get_u32(&answer, Call::status).unwrap();
        (
            status,
            answer[Call::SIZE..Call::SIZE + params.len()].to_vec(),
        )
    }

    /// Allocates an object. As in the driver, the length excludes the parameters.
    fn alloc(
        &mut self,
        client: u32,
        parent: u32,
        object: u32,
        class: u32,
        params: &[u8],
    ) -> Vec<u8> {
        use abi::rpc_gsp_rm_alloc_v as Call;
        let mut call = vec![0; Call::SIZE];
        for (field, value) in [
            (Call::hClient, client),
            (Call::hParent, parent),
            (Call::hObject, object),
            (Call::hClass, class),
            (Call::paramsSize, params.len() as u32),
        ] {
            abi::set(&mut call, field, u64::from(value)).unwrap();
        }
        call.extend(params);
        self.send(abi::NV_VGPU_MSG_FUNCTION_GSP_RM_ALLOC, &call, Call::SIZE);
        let (_, _, answer) = self.receive().expect("an allocation is answered");
        answer[Call::SIZE..Call::SIZE + params.len()].to_vec()
    }

    fn recorded(&self) -> Vec<String> {
        self.lines.all()
    }
}

fn booted() -> Driver {
    let mut driver = Driver::new();
    driver.boot();
    let (function, result, _) = driver.receive().expect("GSP says that it is up");
    assert_eq!(
        (function, result),
        (abi::NV_VGPU_MSG_EVENT_GSP_INIT_DONE, 0)
    );
    driver
}

#[test]
fn static_info_names_this_gpu() {
    let mut driver = booted();
    driver.send(abi::NV_VGPU_MSG_FUNCTION_GET_GSP_STATIC_INFO, &[0; 4], 4);
    let (_, result, info) = driver.receive().unwrap();
    assert_eq!(result, 0);
    let uuid = abi::GspStaticConfigInfo::gidInfo_data.offset();
    assert_eq!(info[uuid..uuid + 16], driver.gpu.uuid());
}

#[test]
fn a_control_is_recorded_with_its_object() {
    let mut driver = booted();
    driver.alloc(
        1,
        0x10,
        0x30,
        0xa06c,
        &[0; abi::NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS::SIZE],
    );
    let (status, params) = driver.control(
        1,
        0x30,
        abi::NVA06C_CTRL_CMD_SET_TIMESLICE,
        &1234u64.to_le_bytes(),
    );
    assert_eq!((status, params), (0, 1234u64.to_le_bytes().to_vec()));
    let last = driver.recorded().pop().unwrap();
    assert!(last.contains("\"object\":48"), "{last}");
    assert!(
        last.ends_with("\"status\":0,\"params\":\"d204000000000000\"}"),
        "{last}"
    );
}

#[test]
fn an_allocation_hands_its_parameters_back() {
    let mut driver = booted();
    assert_eq!(
        driver.alloc(1, 1, 0x10, 0x80, &[1, 2, 3, 4, 5]),
        [1, 2, 3, 4, 5]
    );
}

#[test]
fn parameters_longer_than_the_record_are_refused() {
    let mut driver = booted();
    let mut call = vec![0; abi::rpc_gsp_rm_control_v::SIZE];
    abi::set(
        &mut call,
        abi::rpc_gsp_rm_control_v::paramsSize,
        u64::from(u32::MAX),
    )
    .unwrap();
    driver.send(abi::NV_VGPU_MSG_FUNCTION_GSP_RM_CONTROL, &call, call.len());
    let (_, result, _) = driver.receive().unwrap();
    assert_eq!(result, abi::NV_ERR_INVALID_PARAM_STRUCT);
}

#[test]
fn the_bars_directory_entry_reaches_video_memory() {
    let mut driver = booted();
    use abi::rpc_update_bar_pde_v as Call;
    let mut call = vec![0; Call::SIZE];
    abi::set(
        &mut call,
        Call::barType,
        u64::from(abi::NV_RPC_UPDATE_PDE_BAR_2),
    )
    .unwrap();
    abi::set(&mut call, Call::entryValue, 0x1234_5002).unwrap();
    abi::set(&mut call, Call::entryLevelShift, 56).unwrap();
    driver.send(abi::NV_VGPU_MSG_FUNCTION_UPDATE_BAR_PDE, &call, call.len());
    assert!(driver.receive().is_some());
    let root = driver.gpu.chip().bar2_root();
    driver.set_register(NV_XAL_EP_BAR0_WINDOW::OFFSET, (root >> 16) as u32);
    assert_eq!(
        driver.register(NV_PRAMIN_DATA::OFFSET + (root & 0xffff) as u32),
        0x1234_5002
    );
}

/// Checks a driver that rings over the last driver's ring, before it boots GSP.
#[test]
fn after_unloading_nothing_is_served_until_the_next_boot() {
    let mut driver = booted();
    driver.send(abi::NV_VGPU_MSG_FUNCTION_UNLOADING_GUEST_DRIVER, &[0; 8], 8);
    assert!(driver.receive().is_some());
    assert_eq!(driver.register(NV_PGSP_FALCON_MAILBOX0::OFFSET), 1 << 31);
    driver.send(abi::NV_VGPU_MSG_FUNCTION_GET_GSP_STATIC_INFO, &[0; 4], 4);
    assert!(driver.receive().is_none());
    driver.boot();
    assert_eq!(driver.register(NV_PGSP_FALCON_MAILBOX0::OFFSET), 0);
    assert_eq!(
        driver.receive().map(|(function, ..)| function),
        Some(abi::NV_VGPU_MSG_EVENT_GSP_INIT_DONE)
    );
}

#[test]
fn many_calls_go_round_the_ring() {
    let mut driver = booted();
    for value in 0..200u32 {
        let (status, params) = driver.control(1, 1, 0x2080_ffff, &value.to_le_bytes());
        let unknown = abi::NV_ERR_NOT_SUPPORTED;
        assert_eq!((status, params), (unknown, value.to_le_bytes().to_vec()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks that GSP still answers after calls of any function with any content. There are few
    /// handles, so that calls refer to each other's objects.
    #[test]
    fn any_calls(calls in prop::collection::vec(
        (0u32..0x120, prop::collection::vec(prop_oneof![0u32..4, any_command(), any::<u32>()], 0..60), 0usize..300), 0..60)) {
        let mut driver = booted();
        for (function, words, length) in calls {
            if function == abi::NV_VGPU_MSG_FUNCTION_UNLOADING_GUEST_DRIVER {
                continue;
            }
            let payload: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            driver.send(function, &payload, length);
            driver.gpu.step();
            while driver.receive().is_some() {}
        }
        let (status, _) = driver.control(1, 2, 0xffff_0000, &[1, 2, 3, 4]);
        prop_assert_eq!(status, abi::NV_ERR_NOT_SUPPORTED);
    }
}

/// Returns numbers that calls depend on: classes and controls.
fn any_command() -> impl Strategy<Value = u32> {
    prop::sample::select(vec![
        crate::host::KEPLER_CHANNEL_GROUP_A,
        crate::host::HOPPER_CHANNEL_GPFIFO_A,
        crate::host::FERMI_VASPACE_A,
        crate::host::FERMI_CONTEXT_SHARE_A,
        crate::host::NV01_DEVICE_0,
        abi::NVA06C_CTRL_CMD_GPFIFO_SCHEDULE,
        abi::NVA06C_CTRL_CMD_SET_TIMESLICE,
        abi::NVA06C_CTRL_CMD_PREEMPT,
        abi::NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS,
        abi::NV2080_CTRL_CMD_GPU_GET_GID_INFO,
    ])
}
