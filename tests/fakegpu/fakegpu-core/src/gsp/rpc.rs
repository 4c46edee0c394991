// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Serves the driver's remote calls.

use crate::abi::{self, Malformed};
use crate::chip::ChipDescription;
use crate::faults::Faults;
use crate::gsp::boot;
use crate::gsp::classes;
use crate::gsp::control::{self, Answer};
use crate::gsp::errors;
use crate::gsp::msgq::{Queues, Record};
use crate::gsp::objects::{ObjectKey, Objects};
use crate::gsp::refusals::{refused, Refusal};
use crate::gsp::replayable;
use crate::gsp::scheduling;
use crate::gsp::spaces::{
    self, names_default_space, physical, space_key, update_bar_pde, PAGE_DIRECTORY_APERTURE,
};
use crate::gsp::tables;
use crate::host::execute::ChannelFault;
use crate::host::{Host, FERMI_VASPACE_A};
use crate::memory::PhysicalMemory;
use crate::recorder::{Event, Recorder, PARAMS_MAX};
use std::collections::BTreeSet;

/// Maximum number of records served per doorbell; the ring has fewer.
const RECORDS_PER_DOORBELL: usize = 4096;
/// Maximum number of unknown calls that are logged; a driver has some hundreds.
const UNKNOWN_MAX: usize = 1 << 12;
/// Functions that only inform GSP.
const UNCHANGED: &[u32] = &[
    0x01, // SET_GUEST_SYSTEM_INFO
    0x2f, // UNLOADING_GUEST_DRIVER
    0x47, // CONTINUATION_RECORD
    abi::NV_VGPU_MSG_FUNCTION_INIT_GSP_TRACE_CRASH_BUFFER,
];
/// Last function number. Larger numbers are events.
const NV_VGPU_MSG_FUNCTION_LAST: u32 = 0xfff;

/// GSP, running or not.
#[derive(Default)]
pub struct Gsp {
    queues: Option<Queues>,
    objects: Objects,
    /// Functions, controls and classes that were refused and logged.
    unknown: BTreeSet<u32>,
}

/// The parts of the device that GSP works with.
pub struct Context<'a> {
    /// The description of the chip.
    pub chip: &'a ChipDescription,
    /// The GPU's UUID.
    pub uuid: [u8; 16],
    /// Video and guest memory.
    pub memory: &'a mut PhysicalMemory,
    /// Executes channels.
    pub host: &'a mut Host,
    /// Accesses that wait for the driver.
    pub replayable: &'a mut Faults,
    /// Records what the driver asks for.
    pub recorder: &'a dyn Recorder,
    /// Controls to refuse at a test's request.
    pub refusals: &'a mut [Refusal],
    /// The current time.
    pub now_ns: u64,
}

/// The outcome of serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// GSP's state has not changed.
    Unchanged,
    /// GSP has halted at the driver's request.
    Halted,
}

impl Gsp {
    /// Starts GSP with the boot parameters at guest address `parameters`, without any earlier
    /// state. Returns whether it runs.
    pub fn boot(&mut self, context: &mut Context<'_>, parameters: u64) -> bool {
        *self = Self::default();
        context.host.reset();
        *context.replayable = Faults::default();
        context.recorder.record(context.now_ns, &Event::Boot);
        let queues = boot::find_queues(context.memory, parameters)
            .and_then(|location| Queues::open(context.memory, location));
        match queues {
            Ok(queues) => {
                self.queues = Some(queues);
                // The driver may have queued calls before it started GSP. They come first.
                self.serve(context);
                self.send_init_done(context);
                log::info!("GSP runs");
                true
            }
            Err(error) => {
                log::warn!("GSP does not start: {error}");
                false
            }
        }
    }

    /// Serves the driver's queued calls. Does nothing while GSP is not running: the next start of
    /// the driver rings before it boots GSP, over a stale ring.
    pub fn serve(&mut self, context: &mut Context<'_>) -> Outcome {
        for _ in 0..RECORDS_PER_DOORBELL {
            let Some(queues) = &mut self.queues else {
                return Outcome::Unchanged;
            };
            let record = match queues.receive(context.memory) {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(error) => {
                    log::warn!("GSP: the command queue is out of reach: {error}");
                    break;
                }
            };
            if self.handle(context, record) == Outcome::Halted {
                return Outcome::Halted;
            }
        }
        Outcome::Unchanged
    }

    fn handle(&mut self, context: &mut Context<'_>, record: Record) -> Outcome {
        let function = record.function;
        if function > NV_VGPU_MSG_FUNCTION_LAST {
            log::warn!("GSP: {function:#x} is not a function");
            return Outcome::Unchanged;
        }
        if matches!(
            function,
            abi::NV_VGPU_MSG_FUNCTION_GSP_SET_SYSTEM_INFO | abi::NV_VGPU_MSG_FUNCTION_SET_REGISTRY
        ) {
            // These calls get no response.
            context.recorder.record(
                context.now_ns,
                &Event::Rpc {
                    function,
                    status: abi::NV_OK,
                },
            );
            return Outcome::Unchanged;
        }
        let answer = self.answer(context, record);
        self.send(context, &answer);
        if function == abi::NV_VGPU_MSG_FUNCTION_UNLOADING_GUEST_DRIVER {
            *self = Self::default();
            context.host.reset();
            *context.replayable = Faults::default();
            return Outcome::Halted;
        }
        Outcome::Unchanged
    }

    /// Turns a call into its response.
    fn answer(&mut self, context: &mut Context<'_>, mut record: Record) -> Record {
        let done = match record.function {
            abi::NV_VGPU_MSG_FUNCTION_GSP_RM_CONTROL => self.control(context, &mut record),
            abi::NV_VGPU_MSG_FUNCTION_GSP_RM_ALLOC => self.alloc(context, &mut record),
            abi::NV_VGPU_MSG_FUNCTION_FREE => self.free(context, &record),
            abi::NV_VGPU_MSG_FUNCTION_DUP_OBJECT => self.duplicate(context, &record),
            function => {
                let done = self.other(context, &mut record);
                let status = if done.is_ok() {
                    abi::NV_OK
                } else {
                    abi::NV_ERR_INVALID_PARAM_STRUCT
                };
                context
                    .recorder
                    .record(context.now_ns, &Event::Rpc { function, status });
                done
            }
        };
        if let Err(error) = done {
            let name = abi::rpc_name(record.function).unwrap_or("unknown function");
            log::warn!("GSP: {name}: {error}");
            record.result = abi::NV_ERR_INVALID_PARAM_STRUCT;
        }
        record
    }

    fn control(&mut self, context: &mut Context<'_>, record: &mut Record) -> Result<(), Malformed> {
        use abi::rpc_gsp_rm_control_v as Call;
        let payload = &mut record.payload;
        let object = ObjectKey {
            client: abi::get_u32(payload, Call::hClient)?,
            handle: abi::get_u32(payload, Call::hObject)?,
        };
        let command = abi::get_u32(payload, Call::cmd)?;
        let sent = sent_params(payload, Call::SIZE, abi::get(payload, Call::paramsSize)?)?.to_vec();
        let params = &mut payload[Call::SIZE..Call::SIZE + sent.len()];
        let refused = refused(context.refusals, command);
        let answer = match refused {
            Some(status) => Answer::Given(status),
            None => control::answer(context.chip, context.uuid, command, params),
        };
        let status = match answer {
            Answer::Given(status) => status,
            Answer::Unknown => {
                self.note_unknown("control", command, abi::control_name(command));
                abi::NV_ERR_NOT_SUPPORTED
            }
        };
        abi::set(payload, Call::status, u64::from(status))?;
        if status == abi::NV_OK {
            scheduling::observe(context.host, &self.objects, object, command, &sent)?;
            spaces::observe(context.host, &self.objects, object, command, &sent)?;
            let object = self.objects.origin(object);
            replayable::observe(context.replayable, object, command, &sent)?;
        }
        let class = self.objects.get(object).map(|object| object.class);
        let params = &sent[..sent.len().min(PARAMS_MAX)];
        context.recorder.record(
            context.now_ns,
            &Event::Control {
                object,
                class,
                command,
                status,
                params,
            },
        );
        Ok(())
    }

    fn alloc(&mut self, context: &mut Context<'_>, record: &mut Record) -> Result<(), Malformed> {
        use abi::rpc_gsp_rm_alloc_v as Call;
        let payload = &mut record.payload;
        let object = ObjectKey {
            client: abi::get_u32(payload, Call::hClient)?,
            handle: abi::get_u32(payload, Call::hObject)?,
        };
        let parent = abi::get_u32(payload, Call::hParent)?;
        let class = abi::get_u32(payload, Call::hClass)?;
        let params =
            sent_params(payload, Call::SIZE, abi::get(payload, Call::paramsSize)?)?.to_vec();
        let status = match classes::is_known(class) {
            true => abi::NV_OK,
            false => abi::NV_ERR_INVALID_CLASS,
        };
        abi::set(payload, Call::status, u64::from(status))?;
        match status {
            abi::NV_OK => self.make(context, object, (parent, class), &params)?,
            _ => self.note_unknown("class", class, abi::class_name(class)),
        }
        context.recorder.record(
            context.now_ns,
            &Event::Alloc {
                object,
                parent,
                class,
                status,
                params: &params,
            },
        );
        Ok(())
    }

    /// Makes an object of a known class.
    fn make(
        &mut self,
        context: &mut Context<'_>,
        object: ObjectKey,
        (parent, class): (u32, u32),
        params: &[u8],
    ) -> Result<(), Malformed> {
        if class == FERMI_VASPACE_A && names_default_space(params)? {
            // RM reaches a device's own address space through such a name, and frees the name while
            // channels still use the space.
            self.objects.add_name_of_parent(object, parent, class);
        } else {
            self.objects.add(object, parent, class);
        }
        if let Err(error) = context
            .host
            .alloc(&self.objects, object, parent, class, params)
        {
            log::warn!("GSP: parameters of {class:#x}: {error}");
        }
        Ok(())
    }

    fn free(&mut self, context: &mut Context<'_>, record: &Record) -> Result<(), Malformed> {
        use abi::rpc_free_v as Call;
        let object = ObjectKey {
            client: abi::get_u32(&record.payload, Call::hRoot)?,
            handle: abi::get_u32(&record.payload, Call::hObjectOld)?,
        };
        let class = self.objects.get(object).map(|object| object.class);
        let gone = self.objects.remove(object);
        context.host.free(&gone);
        context.replayable.forget(&gone);
        context
            .recorder
            .record(context.now_ns, &Event::Free { object, class });
        Ok(())
    }

    fn duplicate(&mut self, context: &mut Context<'_>, record: &Record) -> Result<(), Malformed> {
        use abi::rpc_dup_object_v as Call;
        let field = |field| abi::get_u32(&record.payload, field);
        let object = ObjectKey {
            client: field(Call::hClient)?,
            handle: field(Call::hObject)?,
        };
        let source = ObjectKey {
            client: field(Call::hClientSrc)?,
            handle: field(Call::hObjectSrc)?,
        };
        self.objects
            .duplicate(object, field(Call::hParent)?, source);
        context
            .recorder
            .record(context.now_ns, &Event::Duplicate { object, source });
        Ok(())
    }

    fn other(&mut self, context: &mut Context<'_>, record: &mut Record) -> Result<(), Malformed> {
        match record.function {
            abi::NV_VGPU_MSG_FUNCTION_GET_GSP_STATIC_INFO => {
                record.length = abi::GspStaticConfigInfo::SIZE;
                record.payload = vec![0; record.length];
                tables::static_info(context.chip, context.uuid, &mut record.payload)
            }
            abi::NV_VGPU_MSG_FUNCTION_UPDATE_BAR_PDE => update_bar_pde(context, &record.payload),
            abi::NV_VGPU_MSG_FUNCTION_SET_PAGE_DIRECTORY => {
                use abi::rpc_set_page_directory_v as Call;
                let payload = &record.payload;
                let space = space_key(payload, Call::hClient, Call::hDevice, Call::hVASpace)?;
                let in_system = abi::get_u32(payload, Call::flags)? & PAGE_DIRECTORY_APERTURE != 0;
                let root = physical(in_system, abi::get(payload, Call::physAddress)?);
                context
                    .host
                    .set_page_directory(self.objects.origin(space), root);
                Ok(())
            }
            abi::NV_VGPU_MSG_FUNCTION_UNSET_PAGE_DIRECTORY => {
                use abi::rpc_unset_page_directory_v as Call;
                let payload = &record.payload;
                let space = space_key(payload, Call::hClient, Call::hDevice, Call::hVASpace)?;
                context
                    .host
                    .unset_page_directory(self.objects.origin(space));
                Ok(())
            }
            function if UNCHANGED.contains(&function) => Ok(()),
            function => {
                self.note_unknown("function", function, abi::rpc_name(function));
                record.result = abi::NV_ERR_NOT_SUPPORTED;
                Ok(())
            }
        }
    }

    /// Logs what is refused because it is not known, once.
    fn note_unknown(&mut self, what: &str, number: u32, name: Option<&str>) {
        if self.unknown.len() < UNKNOWN_MAX && self.unknown.insert(number) {
            let name = name.unwrap_or("a number without a name");
            log::info!("GSP: {what} {name} ({number:#x}) is refused: it is not known");
        }
    }

    /// Reports to the driver that GSP is up.
    fn send_init_done(&mut self, context: &mut Context<'_>) {
        let event = Record {
            function: abi::NV_VGPU_MSG_EVENT_GSP_INIT_DONE,
            length: 4,
            payload: vec![0; 4],
            ..Record::default()
        };
        self.send(context, &event);
    }

    /// Reports a channel's fault to the driver. Returns whether GSP runs and the report was sent.
    pub fn report_fault(&mut self, context: &mut Context<'_>, fault: &ChannelFault) -> bool {
        self.send(context, &errors::report(fault))
    }

    /// Puts a record into the driver's queue. Returns whether that succeeded.
    fn send(&mut self, context: &mut Context<'_>, record: &Record) -> bool {
        let Some(queues) = &mut self.queues else {
            return false;
        };
        let sent = queues.send(context.memory, record);
        if let Err(error) = &sent {
            log::warn!("GSP: the status queue is out of reach: {error}");
        }
        sent.is_ok()
    }
}

/// Returns the parameters after a call's fixed part.
fn sent_params(payload: &[u8], fixed: usize, size: u64) -> Result<&[u8], Malformed> {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    let field = abi::Field::new(fixed, size);
    let end = fixed.checked_add(size);
    end.and_then(|end| payload.get(fixed..end))
        .ok_or(Malformed {
            field,
            len: payload.len(),
        })
}
