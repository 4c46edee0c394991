// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Returns the names of the GPU.

use crate::abi::*;

/// Fills NV2080_CTRL_CMD_GPU_GET_GID_INFO: the UUID, in binary or as text.
pub(super) fn gid(uuid: [u8; 16], params: &mut [u8]) -> Result<(), Malformed> {
    use NV2080_CTRL_GPU_GET_GID_INFO_PARAMS as P;
    let format = get_u32(params, P::flags)? & NV2080_GPU_CMD_GPU_GET_GID_FLAGS_FORMAT_BINARY;
    let gid = if format == 0 {
        // With the terminating zero.
        format!("{}\0", uuid_text(uuid)).into_bytes()
    } else {
        uuid.to_vec()
    };
    set(params, P::length, gid.len() as u64)?;
    set_bytes(params, P::data, &gid)
}

/// Formats a UUID as the driver prints it.
fn uuid_text(uuid: [u8; 16]) -> String {
    uuid.iter()
        .enumerate()
        .fold("GPU".to_owned(), |text, (index, byte)| {
            let dash = if matches!(index, 0 | 4 | 6 | 8 | 10) {
                "-"
            } else {
                ""
            };
            format!("{text}{dash}{byte:02x}")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_a_binary_and_a_text_form() {
        use NV2080_CTRL_GPU_GET_GID_INFO_PARAMS as P;
        let uuid = *b"fake-gh100-gpu-\x03";
        let mut params = vec![0; P::SIZE];
        gid(uuid, &mut params).unwrap();
        assert_eq!(get(&params, P::length), Ok(41));
        let text = "GPU-66616b65-2d67-6831-3030-2d6770752d03\0";
        assert!(params[P::data.offset()..].starts_with(text.as_bytes()));
        set(&mut params, P::flags, 2).unwrap();
        gid(uuid, &mut params).unwrap();
        assert_eq!(get(&params, P::length), Ok(16));
        assert!(params[P::data.offset()..].starts_with(&uuid));
    }
}
