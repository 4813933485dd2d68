//! The server of `bench/peers/src/bin/echo.rs` over `io_uring` instead of epoll: each connection
//! has one multishot receive into buffers that the kernel takes from a ring, and the answers of a
//! turn leave by one system call, which also waits.
//!
//! `tidegate-uring ADDRESS [PAUSE]`: after a turn with at least eight answers it sleeps for PAUSE
//! microseconds, as Tidegate's own listener does (0, the default: never).

use std::{
    alloc::{Layout, alloc_zeroed},
    io,
    net::TcpListener,
    os::fd::{AsRawFd, RawFd},
    ptr::slice_from_raw_parts,
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::Duration,
};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

/// As long as an answer to `ACQUIRE`.
const ANSWER: &[u8] = b"*5\r\n:0\r\n:100\r\n:99\r\n:-1\r\n:600\r\n";
/// More commands than one buffer holds.
const MOST: usize = 1024;
const BUFFERS: u16 = 512;
const BUFFER: usize = 4096;
const GROUP: u16 = 0;

/// The kind of a completion, in the upper half of its `user_data`. The lower half is the
/// descriptor.
const ACCEPT: u64 = 1 << 32;
const RECEIVE: u64 = 2 << 32;
const SEND: u64 = 3 << 32;

/// The buffers that the kernel receives into, and the ring through which it is given them.
struct Buffers {
    ring: *mut types::BufRingEntry,
    bytes: Vec<u8>,
    tail: u16,
}

impl Buffers {
    fn register(uring: &IoUring) -> io::Result<Self> {
        // Aligned to pages, as the kernel wants it.
        let layout = Layout::array::<types::BufRingEntry>(BUFFERS.into())
            .and_then(|layout| layout.align_to(4096))
            .map_err(io::Error::other)?;
        // SAFETY: the layout is not empty, and aligned for more than entries. The memory is never
        // freed: the kernel uses it as long as the process runs.
        let ring = unsafe { alloc_zeroed(layout) }.cast::<types::BufRingEntry>();
        if ring.is_null() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // SAFETY: `ring` is page-aligned, zeroed memory for as many entries.
        unsafe {
            uring
                .submitter()
                .register_buf_ring_with_flags(ring as u64, BUFFERS, GROUP, 0)?
        };
        let mut buffers = Self {
            ring,
            bytes: vec![0; usize::from(BUFFERS) * BUFFER],
            tail: 0,
        };
        (0..BUFFERS).for_each(|id| buffers.give(id));
        Ok(buffers)
    }

    /// Gives a buffer to the kernel.
    fn give(&mut self, id: u16) {
        let address = self.bytes[usize::from(id) * BUFFER..].as_ptr() as u64;
        // SAFETY: the place is within the ring, and the kernel does not look at it before the tail
        // has moved over it.
        let entry = unsafe { &mut *self.ring.add(usize::from(self.tail % BUFFERS)) };
        entry.set_addr(address);
        entry.set_len(BUFFER as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail lies in the ring's first entry and is shared with the kernel, which
        // reads it by acquire.
        unsafe {
            let tail = types::BufRingEntry::tail(self.ring).cast::<AtomicU16>();
            (*tail).store(self.tail, Ordering::Release);
        }
    }

    /// The commands in what was received, counted by their first byte.
    fn commands(&self, id: u16, length: usize) -> usize {
        let start = usize::from(id) * BUFFER;
        // SAFETY: the kernel has filled this buffer and given it back.
        let received = unsafe { &*slice_from_raw_parts(self.bytes.as_ptr().add(start), length) };
        received.split(|&byte| byte == b'*').count() - 1
    }
}

fn push(uring: &mut IoUring, entry: &squeue::Entry) -> io::Result<()> {
    // SAFETY: what the entries point to (the answers, the buffers) lives as long as the process.
    while unsafe { uring.submission().push(entry) }.is_err() {
        uring.submit()?;
    }
    Ok(())
}

fn receive(stream: RawFd) -> squeue::Entry {
    opcode::RecvMulti::new(types::Fd(stream), GROUP)
        .build()
        .user_data(RECEIVE | stream as u64)
}

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments
        .next()
        .unwrap_or_else(|| "127.0.0.1:16381".to_owned());
    let pause = arguments
        .next()
        .map_or(Ok(0), |text| text.parse())
        .map_err(io::Error::other)?;
    let listener = TcpListener::bind(address)?;
    let answers: &'static [u8] = ANSWER.repeat(MOST).leak();
    let mut uring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(1024)?;
    let mut buffers = Buffers::register(&uring)?;
    let accept = opcode::AcceptMulti::new(types::Fd(listener.as_raw_fd()))
        .build()
        .user_data(ACCEPT);
    push(&mut uring, &accept)?;
    loop {
        uring.submit_and_wait(1)?;
        let completed: Vec<cqueue::Entry> = uring.completion().collect();
        let mut answered = 0;
        for completion in completed {
            let (about, descriptor) = (
                completion.user_data() >> 32 << 32,
                (completion.user_data() as u32).cast_signed(),
            );
            match (about, completion.result()) {
                (ACCEPT, stream @ 0..) => push(&mut uring, &receive(stream))?,
                (RECEIVE, length @ 1..) => {
                    let id = cqueue::buffer_select(completion.flags())
                        .expect("the kernel chose a buffer");
                    let length = buffers.commands(id, length as usize) * ANSWER.len();
                    buffers.give(id);
                    answered += 1;
                    // redis-benchmark waits for its answers: they always fit in the socket's
                    // buffer.
                    let send =
                        opcode::Send::new(types::Fd(descriptor), answers.as_ptr(), length as u32);
                    push(
                        &mut uring,
                        &send.build().user_data(SEND | descriptor as u64),
                    )?;
                    if !cqueue::more(completion.flags()) {
                        push(&mut uring, &receive(descriptor))?;
                    }
                }
                (RECEIVE, _) => {
                    // The peer has gone.
                    let close = opcode::Close::new(types::Fd(descriptor)).build();
                    push(&mut uring, &close)?;
                }
                _ => {}
            }
        }
        if answered >= 8 && pause > 0 {
            uring.submit()?;
            thread::park_timeout(Duration::from_micros(pause));
        }
    }
}
