// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Carries the calls of ttrpc in both directions over the runtime's one socket.
//!
//! ```text
//! frame     connection u32, length u32, bytes                       NRI's multiplexer
//! message   length u32, stream u32, type u8, flags u8, payload      ttrpc, in one or more frames
//! ```
//!
//! Numbers are big-endian. The crate `ttrpc` wants a socket for each connection and code that is
//! generated from NRI's description, so it would need more beside it than is here.

use std::io;

use prost::Message as _;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::api::{Request, Response};

/// The connection on which the runtime calls the plugin.
pub const TO_PLUGIN: u32 = 1;
/// The connection on which the plugin calls the runtime.
pub const TO_RUNTIME: u32 = 2;

/// Bytes before a message's payload.
const HEADER: usize = 10;
/// Most bytes of a payload, as in ttrpc.
const PAYLOAD_MAX: usize = 4 << 20;
/// Most bytes of a frame that is sent. The runtime reads a frame as a whole, into a buffer of this
/// size.
const FRAME_SENT: usize = 4096;

const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// A call, and the stream on which its caller waits.
    Call(u32, Request),
    /// An answer to the call of a stream.
    Answer(u32, Response),
}

/// A connection with a runtime.
#[derive(Debug)]
pub struct Trunk<S> {
    stream: S,
    /// What has come of messages, on each connection.
    buffers: [Vec<u8>; 2],
}

impl<S: AsyncRead + AsyncWrite + Unpin> Trunk<S> {
    /// Returns the trunk over a socket.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            buffers: [Vec::new(), Vec::new()],
        }
    }

    /// Waits for a message.
    ///
    /// # Errors
    ///
    /// Fails if the socket is closed, or something comes that is no message.
    pub async fn receive(&mut self) -> io::Result<Message> {
        loop {
            for buffer in &mut self.buffers {
                if let Some(message) = take(buffer)? {
                    return Ok(message);
                }
            }
            let connection = self.stream.read_u32().await?;
            let length = self.stream.read_u32().await? as usize;
            if length > HEADER + PAYLOAD_MAX {
                return Err(invalid("a frame is too long"));
            }
            let mut bytes = vec![0; length];
            self.stream.read_exact(&mut bytes).await?;
            match connection {
                TO_PLUGIN => self.buffers[0].extend(bytes),
                TO_RUNTIME => self.buffers[1].extend(bytes),
                // The runtime's multiplexer drops them, too.
                _ => {}
            }
        }
    }

    /// Sends a message on a connection.
    ///
    /// # Errors
    ///
    /// Those of the socket, and of a message that is too long.
    pub async fn send(&mut self, connection: u32, message: &Message) -> io::Result<()> {
        let (stream, kind, payload) = match message {
            Message::Call(stream, request) => (stream, REQUEST, request.encode_to_vec()),
            Message::Answer(stream, response) => (stream, RESPONSE, response.encode_to_vec()),
        };
        let too_long = |_| invalid("a message is too long");
        let length = u32::try_from(payload.len()).map_err(too_long)?;
        if payload.len() > PAYLOAD_MAX {
            return Err(invalid("a message is too long"));
        }
        let mut bytes = Vec::with_capacity(HEADER + payload.len());
        bytes.extend(length.to_be_bytes());
        bytes.extend(stream.to_be_bytes());
        bytes.extend([kind, 0]);
        bytes.extend(payload);
        for part in bytes.chunks(FRAME_SENT) {
            let length = u32::try_from(part.len()).map_err(too_long)?;
            self.stream.write_u32(connection).await?;
            self.stream.write_u32(length).await?;
            self.stream.write_all(part).await?;
        }
        self.stream.flush().await
    }
}

/// Takes a message out of a connection's buffer, if one is whole.
fn take(buffer: &mut Vec<u8>) -> io::Result<Option<Message>> {
    let Some((header, rest)) = buffer.split_first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let [l0, l1, l2, l3, s0, s1, s2, s3, kind, _] = *header;
    let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
    let stream = u32::from_be_bytes([s0, s1, s2, s3]);
    if length > PAYLOAD_MAX {
        return Err(invalid("a message is too long"));
    }
    let Some(payload) = rest.get(..length) else {
        return Ok(None);
    };
    let message = match kind {
        REQUEST => Message::Call(stream, Request::decode(payload)?),
        RESPONSE => Message::Answer(stream, Response::decode(payload)?),
        _ => return Err(invalid("a message has an unknown type")),
    };
    buffer.drain(..HEADER + length);
    Ok(Some(message))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(payload: Vec<u8>) -> Message {
        let request = Request {
            service: "s".to_owned(),
            method: "m".to_owned(),
            payload,
        };
        Message::Call(3, request)
    }

    /// As containerd 1.7 sends it, with the field of a timeout, which the plugin does not read.
    const CALL: &[u8] = &[
        0, 0, 0, 1, 0, 0, 0, 21, // the frame: connection 1, 21 bytes
        0, 0, 0, 11, 0, 0, 0, 3, 1, 0, // the message: 11 bytes, stream 3, a request
        10, 1, b's', 18, 1, b'm', 26, 1, 7, 32, 9, // service, method, payload, timeout
    ];

    #[tokio::test]
    async fn a_frame_is_what_the_runtime_sends() {
        let (mut runtime, plugin) = tokio::io::duplex(1024);
        let mut trunk = Trunk::new(plugin);
        runtime.write_all(CALL).await.unwrap();
        assert_eq!(trunk.receive().await.unwrap(), call(vec![7]));
        let answer = Message::Answer(3, Response::default());
        trunk.send(TO_PLUGIN, &answer).await.unwrap();
        let mut sent = [0; 18];
        runtime.read_exact(&mut sent).await.unwrap();
        assert_eq!(sent[..8], [0, 0, 0, 1, 0, 0, 0, 10]);
        assert_eq!(sent[8..], [0, 0, 0, 0, 0, 0, 0, 3, 2, 0]);
    }

    #[tokio::test]
    async fn a_long_message_goes_in_several_frames() {
        let (runtime, plugin) = tokio::io::duplex(1 << 20);
        let (mut runtime, mut plugin) = (Trunk::new(runtime), Trunk::new(plugin));
        for bytes in [FRAME_SENT - 16, FRAME_SENT, 100_000] {
            let message = call(vec![1; bytes]);
            runtime.send(TO_PLUGIN, &message).await.unwrap();
            assert_eq!(plugin.receive().await.unwrap(), message);
        }
    }

    #[tokio::test]
    async fn what_is_no_message_ends_the_connection() {
        let long = u32::try_from(PAYLOAD_MAX).unwrap() + 1;
        let head = [&long.to_be_bytes()[..], &[0, 0, 0, 1, 1, 0]].concat();
        let frame = |bytes: &[u8]| {
            let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
            [&[0, 0, 0, 1][..], &length, bytes].concat()
        };
        for (bytes, says) in [
            (vec![0, 0, 0, 1, 255, 0, 0, 0], "a frame is too long"),
            (frame(&head), "a message is too long"),
            (frame(&[0, 0, 0, 0, 0, 0, 0, 1, 3, 0]), "unknown type"),
            (frame(&[0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 255]), "varint"),
            (vec![0, 0, 0], "end of file"),
        ] {
            let (mut runtime, plugin) = tokio::io::duplex(1024);
            runtime.write_all(&bytes).await.unwrap();
            drop(runtime);
            let error = Trunk::new(plugin).receive().await.unwrap_err().to_string();
            assert!(error.contains(says), "{error}, not {says}");
        }
    }
}
