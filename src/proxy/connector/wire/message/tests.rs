use bytes::BytesMut;
use proptest::prelude::*;

use super::*;

/// Frames segments given as words.
fn framed(segments: &[&[u64]]) -> BytesMut {
    let mut out = BytesMut::new();
    out.extend_from_slice(&(segments.len() as u32 - 1).to_le_bytes());
    for segment in segments {
        out.extend_from_slice(&(segment.len() as u32).to_le_bytes());
    }
    out.resize(out.len().next_multiple_of(8), 0);
    for word in segments.iter().copied().flatten() {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out
}

fn message(segments: &[&[u64]]) -> Message {
    Message::take(&mut framed(segments), &Limits::DEFAULT).unwrap().unwrap()
}

fn struct_pointer(offset: i32, data: u64, pointers: u64) -> u64 {
    u64::from((offset << 2).cast_unsigned()) | data << 32 | pointers << 48
}

fn list_pointer(offset: i32, size: u64, len: u64) -> u64 {
    u64::from((offset << 2).cast_unsigned()) | 1 | size << 32 | len << 35
}

fn far(pad: u64, segment: u64, double: bool) -> u64 {
    2 | u64::from(double) << 2 | pad << 3 | segment << 32
}

#[test]
fn objects_behind_far_pointers() {
    let text = u64::from_le_bytes(*b"far out\0");
    // The root in segment 1, its text in segment 2, found by a double far pointer whose pad is in segment 3.
    let m = message(&[
        &[far(0, 1, false)],
        &[struct_pointer(0, 1, 1), 42, far(0, 3, true)],
        &[0, text],
        &[far(1, 2, false), list_pointer(0, 2, 8)],
    ]);
    let root = m.root().unwrap();
    assert_eq!(root.u64(0), 42);
    assert_eq!(root.text(0, "text").unwrap(), "far out");
}

#[test]
fn fields_beyond_the_end_are_empty() {
    let m = message(&[&[struct_pointer(0, 0, 0)]]);
    let root = m.root().unwrap();
    assert_eq!((root.u8(0), root.u16(6), root.u32(4), root.u64(8), root.bit(500)), (0, 0, 0, 0, false));
    assert_eq!(root.text(3, "text").unwrap(), "");
    assert!(root.list(0).unwrap().is_empty() && root.is_null(0));
    assert_eq!(root.list(0).unwrap().get(7).u64(0), 0);
    assert_eq!(root.pointer_to_struct(1).unwrap().u32(0), 0);
}

#[test]
fn pointers_that_lead_out_are_refused() {
    let cases: [&[&[u64]]; 9] = [
        &[&[struct_pointer(5, 1, 0)]],
        &[&[struct_pointer(-3, 1, 0)]],
        &[&[struct_pointer(0, 0xffff, 0xffff)]],
        &[&[far(0, 9, false)]],
        &[&[far(1 << 28, 0, false)]],
        &[&[far(0, 0, false)]],
        &[&[far(1, 0, true), 0, 0]],
        &[&[list_pointer(0, 2, 1), 0]],
        &[&[]],
    ];
    for case in cases {
        assert!(message(case).root().is_err(), "{case:x?}");
    }
    for list in [list_pointer(0, 7, 1 << 28), list_pointer(0, 2, 9), list_pointer(1 << 28, 2, 1), list_pointer(0, 1, 3)] {
        let m = message(&[&[struct_pointer(0, 0, 1), list, 0]]);
        let root = m.root().unwrap();
        assert!(root.list(0).is_err(), "{list:x}");
        assert!(root.text_bytes(0).is_err(), "{list:x}");
    }
}

#[test]
fn loops_and_bombs_end() {
    // A struct whose only pointer leads back to itself.
    let m = message(&[&[struct_pointer(0, 0, 1), struct_pointer(-1, 0, 1)]]);
    let mut at = m.root().unwrap();
    let end = loop {
        match at.pointer_to_struct(0) {
            Ok(next) => at = next,
            Err(error) => break error,
        }
    };
    assert_eq!(end, WireError::Amplified);
    // A few bytes that announce half a billion elements of no size.
    let m = message(&[&[struct_pointer(0, 0, 1), list_pointer(0, 7, 0), u64::from(!3_u32)]]);
    assert_eq!(m.root().unwrap().list(0).unwrap_err(), WireError::Amplified);
    // One list that is read again and again.
    let m = message(&[&[struct_pointer(0, 0, 1), list_pointer(0, 2, 8), 0]]);
    let root = m.root().unwrap();
    assert!((0..100).any(|_| root.data(0).is_err()));
}

#[test]
fn announced_sizes_are_limited() {
    let take = |bytes: &[u8]| Message::take(&mut BytesMut::from(bytes), &Limits::DEFAULT).map(|m| m.is_some());
    assert_eq!(take(&[0xff, 0xff, 0xff, 0xff]), Err(WireError::TooManySegments(1 << 32)));
    assert_eq!(take(&[0, 2, 0, 0]), Err(WireError::TooManySegments(513)));
    assert_eq!(take(&[0, 0, 0, 0, 1, 0, 2, 0]), Err(WireError::TooLarge { bytes: (1 << 20) + 8, limit: 1 << 20 }));
    assert_eq!(take(&[0, 0, 0, 0, 0, 0, 2, 0]), Ok(false));
    assert_eq!(take(&[0, 0, 0]), Ok(false));
    assert!(take(&framed(&[&[], &[], &[]])).unwrap());
}

#[test]
fn a_message_too_large_is_not_written() {
    let (mut b, root) = Builder::new(1, 2);
    b.set_data(root, 0, &vec![0; 17 << 20]);
    b.set_text(root, 1, b"later writes have no effect");
    b.set_u32(root, 0, 1);
    assert!(matches!(b.finish(), Err(WireError::TooLarge { .. })));
}

/// A struct of everything the builder can write, as values.
#[derive(Debug, Clone)]
struct Everything {
    number: u64,
    small: u16,
    flag: bool,
    text: String,
    bytes: Vec<u8>,
    texts: Vec<String>,
    structs: Vec<(u32, String)>,
}

fn everything() -> impl Strategy<Value = Everything> {
    let structs = prop::collection::vec((any::<u32>(), ".{0,9}"), 0..9);
    let texts = prop::collection::vec(".{0,12}", 0..6);
    (any::<u64>(), any::<u16>(), any::<bool>(), ".{0,40}", prop::collection::vec(any::<u8>(), 0..50), texts, structs).prop_map(
        |(number, small, flag, text, bytes, texts, structs)| Everything { number, small, flag, text, bytes, texts, structs },
    )
}

fn build(e: &Everything) -> Vec<u8> {
    let (mut b, root) = Builder::new(2, 4);
    b.set_u64(root, 0, e.number);
    b.set_u16(root, 10, e.small);
    b.set_bit(root, 100, e.flag);
    b.set_text(root, 0, e.text.as_bytes());
    b.set_data(root, 1, &e.bytes);
    b.set_texts(root, 2, e.texts.iter().map(String::as_str));
    let list = b.init_structs(root, 3, e.structs.len(), 1, 1);
    for (i, (number, text)) in e.structs.iter().enumerate() {
        let element = b.element(list, i);
        b.set_u32(element, 4, *number);
        b.set_text(element, 0, text.as_bytes());
    }
    b.finish().unwrap()
}

fn check(e: &Everything, root: &StructReader<'_>) {
    assert_eq!((root.u64(0), root.u16(10), root.bit(100)), (e.number, e.small, e.flag));
    assert_eq!(root.text(0, "text").unwrap(), e.text);
    assert_eq!(root.data(1).unwrap(), e.bytes);
    assert_eq!(root.list(2).unwrap().iter().map(|t| t.text(0, "t").unwrap().to_owned()).collect::<Vec<_>>(), e.texts);
    let structs: Vec<_> = root.list(3).unwrap().iter().map(|s| (s.u32(4), s.text(0, "t").unwrap().to_owned())).collect();
    assert_eq!(structs, e.structs);
}

proptest! {
    #[test]
    fn what_is_written_is_read(e in everything(), piece in 1usize..40) {
        let bytes = build(&e);
        let mut decoder = Decoder::default();
        let mut found = Vec::new();
        for chunk in [&bytes[..], &bytes[..]].concat().chunks(piece) {
            decoder.push(chunk);
            while let Some(message) = decoder.next_message().unwrap() {
                found.push(message);
            }
        }
        prop_assert_eq!((found.len(), decoder.buffered()), (2, 0));
        for message in &found {
            check(&e, &message.root().unwrap());
        }
    }

    #[test]
    fn a_copy_is_the_same(e in everything()) {
        let bytes = build(&e);
        let message = Message::take(&mut BytesMut::from(&bytes[..]), &Limits::DEFAULT).unwrap().unwrap();
        let (mut b, root) = Builder::new(0, 1);
        let holder = message.root().unwrap();
        for slot in 0..4 {
            let (mut one, root) = Builder::new(0, 1);
            one.copy(root, 0, &holder, slot).unwrap();
            one.finish().unwrap();
        }
        // Through a struct, so that all of it is copied at once.
        let (mut outer, outer_root) = Builder::new(0, 1);
        let copy = outer.init_struct(outer_root, 0, 2, 4);
        outer.set_u64(copy, 0, e.number);
        outer.set_u16(copy, 10, e.small);
        outer.set_bit(copy, 100, e.flag);
        let fresh = Message::take(&mut BytesMut::from(&bytes[..]), &Limits::DEFAULT).unwrap().unwrap();
        for slot in 0..4 {
            outer.copy(copy, slot, &fresh.root().unwrap(), slot).unwrap();
        }
        let outer = Message::take(&mut BytesMut::from(&outer.finish().unwrap()[..]), &Limits::DEFAULT).unwrap().unwrap();
        b.copy(root, 0, &outer.root().unwrap(), 0).unwrap();
        let whole = Message::take(&mut BytesMut::from(&b.finish().unwrap()[..]), &Limits::DEFAULT).unwrap().unwrap();
        check(&e, &whole.root().unwrap().pointer_to_struct(0).unwrap());
    }

    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        crate::proxy::connector::wire::vectors::feed_all(&bytes);
        // With a plausible frame around it, so that the objects are looked at.
        let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w)).collect();
        crate::proxy::connector::wire::vectors::feed_all(&framed(&[&words]));
    }
}
