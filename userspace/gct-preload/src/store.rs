// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Finds the length of the store instruction at which a doorbell has faulted.
//!
//! The stored value is not needed, because the ring shows what there is to publish. So the program
//! can resume behind the store, and the next one faults again.

/// Returns the length in bytes of the store whose code `byte` reads. Returns `None` for any other
/// instruction, and for a store that changes more than memory. `byte` is called for no byte beyond
/// the instruction.
pub(crate) fn length(byte: impl Fn(usize) -> u8) -> Option<usize> {
    // REX.
    let at = usize::from(byte(0) & 0xf0 == 0x40);
    let (opcode, immediate) = match byte(at) {
        // mov r/m, r
        0x89 => (1, 0),
        // mov r/m, imm32
        0xc7 => (1, 4),
        // movnti m, r
        0x0f if byte(at + 1) == 0xc3 => (2, 0),
        _ => return None,
    };
    let modrm = byte(at + opcode);
    let (mode, extension, base) = (modrm >> 6, (modrm >> 3) & 7, modrm & 7);
    if mode == 3 || (immediate > 0 && extension != 0) {
        return None;
    }
    let has_sib = base == 4;
    let base = match has_sib {
        true => byte(at + opcode + 1) & 7,
        false => base,
    };
    let displacement = match mode {
        1 => 1,
        2 => 4,
        // A displacement without a register.
        _ if base == 5 => 4,
        _ => 0,
    };
    Some(at + opcode + 1 + usize::from(has_sib) + displacement + immediate)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodings that an assembler produced.
    #[test]
    fn stores_have_the_length_of_their_encoding() {
        let stores: [&[u8]; 14] = [
            &[0x89, 0x02],                                        // mov [rdx], eax
            &[0x89, 0x48, 0x10],                                  // mov [rax+16], ecx
            &[0x89, 0x88, 0x90, 0, 0, 0],                         // mov [rax+0x90], ecx
            &[0x41, 0x89, 0x45, 0x00],                            // mov [r13], eax
            &[0x44, 0x89, 0x24, 0x24],                            // mov [rsp], r12d
            &[0x89, 0x44, 0x24, 0x08],                            // mov [rsp+8], eax
            &[0x89, 0x04, 0x8d, 0, 0, 0, 0],                      // mov [rcx*4], eax
            &[0x42, 0x89, 0x04, 0xb0],                            // mov [rax+r14*4], eax
            &[0x89, 0x05, 0x10, 0x20, 0, 0],                      // mov [rip+0x2010], eax
            &[0x48, 0x89, 0x10],                                  // mov [rax], rdx
            &[0xc7, 0x00, 1, 2, 3, 4],                            // mov dword [rax], imm
            &[0x41, 0xc7, 0x84, 0x24, 0x90, 0, 0, 0, 1, 2, 3, 4], // mov dword [r12+0x90], imm
            &[0x0f, 0xc3, 0x08],                                  // movnti [rax], ecx
            &[0x4c, 0x0f, 0xc3, 0x42, 0x08],                      // movnti [rdx+8], r8
        ];
        for store in stores {
            assert_eq!(length(|at| store[at]), Some(store.len()), "{store:x?}");
        }
    }

    #[test]
    fn what_is_no_store_has_none() {
        let others: [&[u8]; 8] = [
            &[0x8b, 0x02],             // mov eax, [rdx]
            &[0x89, 0xc2],             // mov edx, eax
            &[0xf0, 0x87, 0x02],       // lock xchg [rdx], eax
            &[0x87, 0x02],             // xchg [rdx], eax
            &[0x01, 0x02],             // add [rdx], eax
            &[0xc7, 0xf8, 0, 0, 0, 0], // xbegin
            &[0x66, 0x89, 0x02],       // mov [rdx], ax
            &[0x0f, 0x11, 0x02],       // movups [rdx], xmm0
        ];
        for other in others {
            assert_eq!(length(|at| other[at]), None, "{other:x?}");
        }
    }
}
