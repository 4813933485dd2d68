//! A minimal RESP client for commands to servers.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::TcpStream,
    time::Duration,
};

/// A server's reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A status, a number or a bulk string, as text.
    Text(String),
    /// A bulk string that is not UTF-8.
    Bytes(Vec<u8>),
    /// A null reply.
    Nil,
    /// An error.
    Error(String),
    /// An array.
    Array(Vec<Reply>),
}

impl Reply {
    /// The text; empty for any other reply.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Error(text) => text,
            _ => "",
        }
    }
}

/// Sends one command on a new connection and reads the reply.
///
/// # Errors
/// When the server cannot be reached within two seconds or does not reply within twenty, as when it
/// runs a long script.
pub fn ask(port: u16, command: &[&str]) -> io::Result<Reply> {
    ask_as(port, None, command)
}

/// Like [`ask`], with a password.
pub(crate) fn ask_as(port: u16, password: Option<&str>, command: &[&str]) -> io::Result<Reply> {
    let mut stream =
        TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let auth = password.map(|password| ["AUTH", password]);
    let mut request = String::new();
    for command in auth.iter().map(<[_; 2]>::as_slice).chain([command]) {
        request.extend(["*", &command.len().to_string(), "\r\n"]);
        for part in command {
            request.extend(["$", &part.len().to_string(), "\r\n", part, "\r\n"]);
        }
    }
    stream.write_all(request.as_bytes())?;
    let mut replies = BufReader::new(stream);
    if auth.is_some() {
        read(&mut replies)?;
    }
    read(&mut replies)
}

fn read(from: &mut impl BufRead) -> io::Result<Reply> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let line = line.trim_end();
    let odd = || io::Error::new(io::ErrorKind::InvalidData, format!("not a reply: {line:?}"));
    let (kind, rest) = line.split_at_checked(1).ok_or_else(odd)?;
    let length = || rest.parse::<i64>().map_err(|_| odd());
    Ok(match kind {
        "+" | ":" => Reply::Text(rest.into()),
        "-" => Reply::Error(rest.into()),
        "$" => match usize::try_from(length()?) {
            Err(_) => Reply::Nil,
            Ok(length) => {
                let mut bytes = vec![0; length + 2];
                from.read_exact(&mut bytes)?;
                bytes.truncate(length);
                // Bytes that are not UTF-8 are kept as they are, so different values are never
                // equal replies.
                String::from_utf8(bytes)
                    .map_or_else(|no| Reply::Bytes(no.into_bytes()), Reply::Text)
            }
        },
        "*" => match usize::try_from(length()?) {
            Err(_) => Reply::Nil,
            Ok(length) => Reply::Array((0..length).map(|_| read(from)).collect::<io::Result<_>>()?),
        },
        _ => return Err(odd()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_values_are_never_equal_replies() {
        let read = |bytes: &[u8]| {
            let mut reply = format!("${}\r\n", bytes.len()).into_bytes();
            reply.extend(bytes);
            reply.extend(b"\r\n");
            read(&mut reply.as_slice()).expect("it is well formed")
        };
        assert_eq!(read(b"text"), Reply::Text("text".into()));
        assert_eq!(read(b"\xff\0"), Reply::Bytes(b"\xff\0".to_vec()));
        assert_ne!(read(b"\xff"), read(b"\xfe"));
    }
}
