// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Models the security processor (FSP), which starts GSP when the driver asks.
//!
//! Messages pass through a small memory, EMEM. The driver writes a message, sets QUEUE_TAIL to its
//! end and submits it by writing QUEUE_HEAD. The response lies in EMEM between MSGQ_HEAD and
//! MSGQ_TAIL. Only the message that starts GSP (COT, chain of trust) is interpreted. Every other
//! message gets a response without error.

use crate::abi;
use crate::bits::Bits;
use crate::regs::*;

/// Words of EMEM in the model, more than any message has.
const EMEM_WORDS: usize = 2048;
/// Bytes of the transport headers before a payload: MCTP and NVDM, one word
/// each.
const HEADER_BYTES: usize = 8;
/// MCTP header of a message that is a single packet.
const MCTP_SINGLE_PACKET: u32 = 0xc000_0000;
/// NVDM header without its type: vendor-defined PCI, NVIDIA.
const NVDM_HEADER: u32 = 0x0010_de7e;
/// The type in an NVDM header.
const NVDM_TYPE: Bits = Bits::new(31, 24);
/// Type of the message that starts GSP.
const NVDM_TYPE_COT: u32 = 0x14;
/// Type of responses.
const NVDM_TYPE_FSP_RESPONSE: u64 = 0x15;

/// An action that a register write requests from the rest of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FspRequest {
    /// Start GSP with the boot parameters at this guest address.
    BootGsp {
        /// Guest-physical address of GSP_FMC_BOOT_PARAMS.
        parameters: u64,
    },
}

/// FSP's registers and memory.
pub struct Fsp {
    emem: Vec<u32>,
    ememc: NV_PFSP_EMEMC,
    queue_tail: u32,
    answer: Option<(u32, u32)>,
}

impl Default for Fsp {
    fn default() -> Self {
        Self {
            emem: vec![0; EMEM_WORDS],
            ememc: NV_PFSP_EMEMC::default(),
            queue_tail: 0,
            answer: None,
        }
    }
}

impl Fsp {
    /// Reads the register at `offset`, if it is one of FSP's. A read of EMEMD may advance EMEMC.
    pub fn read(&mut self, offset: u32) -> Option<u32> {
        match offset {
            NV_PFSP_EMEMC::OFFSET => Some(self.ememc.raw()),
            NV_PFSP_EMEMD::OFFSET => {
                let word = self.emem.get(self.position()).copied().unwrap_or(0);
                if self.ememc.get(NV_PFSP_EMEMC::AINCR) == 1 {
                    self.advance();
                }
                Some(word)
            }
            // Head and tail are equal as soon as FSP has taken a message.
            NV_PFSP_QUEUE_HEAD::OFFSET => Some(0),
            NV_PFSP_QUEUE_TAIL::OFFSET => Some(self.queue_tail),
            NV_PFSP_MSGQ_HEAD::OFFSET => Some(self.answer.map_or(0, |(head, _)| head)),
            NV_PFSP_MSGQ_TAIL::OFFSET => Some(self.answer.map_or(0, |(_, tail)| tail)),
            _ => None,
        }
    }

    /// Writes the register at `offset`. Returns whether it is one of FSP's, and the requested
    /// action.
    pub fn write(&mut self, offset: u32, value: u32) -> (bool, Option<FspRequest>) {
        match offset {
            NV_PFSP_EMEMC::OFFSET => self.ememc = NV_PFSP_EMEMC::from_raw(value),
            NV_PFSP_EMEMD::OFFSET => {
                let position = self.position();
                if let Some(word) = self.emem.get_mut(position) {
                    *word = value;
                }
                if self.ememc.get(NV_PFSP_EMEMC::AINCW) == 1 {
                    self.advance();
                }
            }
            NV_PFSP_QUEUE_TAIL::OFFSET => self.queue_tail = value,
            NV_PFSP_QUEUE_HEAD::OFFSET => return (true, self.take_message()),
            // The driver empties the response queue by making head and tail equal.
            NV_PFSP_MSGQ_HEAD::OFFSET => self.answer = None,
            NV_PFSP_MSGQ_TAIL::OFFSET => self.answer = None,
            _ => return (false, None),
        }
        (true, None)
    }

    /// Returns the index of the word of EMEM that EMEMC points at.
    fn position(&self) -> usize {
        // CAST: 14 bits.
        (self.ememc.get(NV_PFSP_EMEMC::BLK) as usize) * 64
            + self.ememc.get(NV_PFSP_EMEMC::OFFS) as usize
    }

    fn advance(&mut self) {
        let offs = self.ememc.get(NV_PFSP_EMEMC::OFFS) + 1;
        let blk = self.ememc.get(NV_PFSP_EMEMC::BLK) + (offs >> 6);
        self.ememc = self
            .ememc
            .with(NV_PFSP_EMEMC::OFFS, offs)
            .with(NV_PFSP_EMEMC::BLK, blk);
    }

    /// Takes the message in EMEM and responds to it.
    fn take_message(&mut self) -> Option<FspRequest> {
        // The tail is the offset of the last word.
        let words = usize::try_from(self.queue_tail / 4)
            .map_or(EMEM_WORDS, |last| (last + 1).min(EMEM_WORDS));
        let message: Vec<u8> = self.emem[..words]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let kind = u32::try_from(NVDM_TYPE.of(u64::from(self.emem[1]))).unwrap_or(0);
        self.queue_tail = 0;
        self.put_answer(kind);
        if kind != NVDM_TYPE_COT {
            log::info!("FSP: message of type {kind:#x} acknowledged");
            return None;
        }
        let payload = message.get(HEADER_BYTES..).unwrap_or(&[]);
        match abi::get(payload, abi::NVDM_PAYLOAD_COT::gspBootArgsSysmemOffset) {
            Ok(parameters) => Some(FspRequest::BootGsp { parameters }),
            Err(error) => {
                log::warn!("FSP: malformed COT message: {error}");
                None
            }
        }
    }

    /// Responds to a message of type `kind`: task, command, no error.
    fn put_answer(&mut self, kind: u32) {
        // CAST: the type fits its field.
        let header = NVDM_TYPE.put(u64::from(NVDM_HEADER), NVDM_TYPE_FSP_RESPONSE) as u32;
        let answer = [MCTP_SINGLE_PACKET, header, 0, kind, 0];
        self.emem[..answer.len()].copy_from_slice(&answer);
        // MSGQ_TAIL is also the offset of the last word.
        self.answer = Some((0, 4 * (answer.len() as u32 - 1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn put(fsp: &mut Fsp, words: &[u32]) -> Option<FspRequest> {
        fsp.write(NV_PFSP_EMEMC::OFFSET, 1 << 24);
        for word in words {
            fsp.write(NV_PFSP_EMEMD::OFFSET, *word);
        }
        fsp.write(NV_PFSP_QUEUE_TAIL::OFFSET, 4 * (words.len() as u32 - 1));
        fsp.write(NV_PFSP_QUEUE_HEAD::OFFSET, 0).1
    }

    fn cot(parameters: u64) -> Vec<u32> {
        let mut payload = vec![0; abi::NVDM_PAYLOAD_COT::SIZE];
        abi::set(
            &mut payload,
            abi::NVDM_PAYLOAD_COT::gspBootArgsSysmemOffset,
            parameters,
        )
        .unwrap();
        let mut words = vec![MCTP_SINGLE_PACKET, 0x1410_de7e];
        words.extend(
            payload
                .chunks(4)
                .map(|bytes| u32::from_le_bytes(bytes.try_into().unwrap())),
        );
        words
    }

    #[test]
    fn a_cot_message_boots_gsp_and_is_answered() {
        let mut fsp = Fsp::default();
        let request = put(&mut fsp, &cot(0x1234_5000));
        assert_eq!(
            request,
            Some(FspRequest::BootGsp {
                parameters: 0x1234_5000
            })
        );
        assert_eq!(fsp.read(NV_PFSP_MSGQ_TAIL::OFFSET), Some(0x10));
        fsp.write(NV_PFSP_EMEMC::OFFSET, 1 << 25);
        let answer: Vec<_> = (0..5)
            .map(|_| fsp.read(NV_PFSP_EMEMD::OFFSET).unwrap())
            .collect();
        assert_eq!(answer, [0xc000_0000, 0x1510_de7e, 0, 0x14, 0]);
        fsp.write(NV_PFSP_MSGQ_TAIL::OFFSET, 0);
        assert_eq!(fsp.read(NV_PFSP_MSGQ_TAIL::OFFSET), Some(0));
    }

    /// Checks the value of EMEMC after a message, which the driver asserts.
    #[test]
    fn ememc_counts_words_through_blocks() {
        let mut fsp = Fsp::default();
        fsp.write(NV_PFSP_EMEMC::OFFSET, 1 << 24);
        for word in 0..217 {
            fsp.write(NV_PFSP_EMEMD::OFFSET, word);
        }
        assert_eq!(
            fsp.read(NV_PFSP_EMEMC::OFFSET),
            Some(1 << 24 | (217 / 64) << 8 | (217 % 64) << 2)
        );
    }

    #[test]
    fn a_short_cot_message_starts_nothing() {
        assert_eq!(
            put(
                &mut Fsp::default(),
                &[MCTP_SINGLE_PACKET, 0x1410_de7e, 0, 0]
            ),
            None
        );
    }

    proptest! {
        #[test]
        fn any_accesses(ops in prop::collection::vec((0usize..6, any::<u32>(), any::<bool>()), 0..80)) {
            let offsets = [0x8f_2ac0, 0x8f_2ac4, 0x8f_2c00, 0x8f_2c04, 0x8f_2c80, 0x8f_2c84];
            let mut fsp = Fsp::default();
            for (register, value, write) in ops {
                if write {
                    fsp.write(offsets[register], value);
                } else {
                    prop_assert!(fsp.read(offsets[register]).is_some());
                }
            }
        }
    }
}
