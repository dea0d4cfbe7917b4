//! Tests the reader on messages created here: well-formed ones round-trip, and others give an error with a
//! file and an offset, never a panic. Needs no downloaded data.

use lz_onnx_conformance::tensor::read_tensor;
use lz_onnx_conformance::wire::Chunk;
use lz_onnx_conformance::{
    AttributeValue, DataType, LoadedCase, NamedTensor, SkipReason, ToF64, load_case, read_model,
};
use lz_test_support::Folder;
use proptest::prelude::*;
use std::path::PathBuf;

/// Minimal protobuf writer, to create messages for the reader.
#[derive(Clone, Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn int(mut self, number: u32, value: i64) -> Self {
        self.varint(u64::from(number << 3));
        self.varint(value as u64);
        self
    }

    fn float(mut self, number: u32, value: f32) -> Self {
        self.varint(u64::from(number << 3 | 5));
        self.0.extend(value.to_le_bytes());
        self
    }

    fn bytes(mut self, number: u32, bytes: &[u8]) -> Self {
        self.varint(u64::from(number << 3 | 2));
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn nested(self, number: u32, message: Message) -> Self {
        self.bytes(number, &message.0)
    }

    fn packed(self, number: u32, values: &[i64]) -> Self {
        let mut run = Message::default();
        values.iter().for_each(|&value| run.varint(value as u64));
        self.bytes(number, &run.0)
    }
}

fn tensor_header(dimensions: &[i64], code: i64) -> Message {
    dimensions.iter().fold(Message::default(), |message, &size| message.int(1, size)).int(2, code)
}

fn value(name: &str, type_field: u32) -> Message {
    let kind = Message::default().nested(type_field, Message::default().int(1, 1));
    Message::default().bytes(1, name.as_bytes()).nested(2, kind)
}

fn attribute(name: &str, code: i64) -> Message {
    Message::default().bytes(1, name.as_bytes()).int(20, code)
}

/// A node with every kind of attribute and an omitted optional input.
fn node() -> Message {
    let tensor = tensor_header(&[2], 1).bytes(9, &[0, 0, 128, 63, 0, 0, 0, 64]);
    Message::default()
        .bytes(1, b"Q")
        .bytes(1, b"")
        .bytes(1, b"V")
        .bytes(2, b"Y")
        .bytes(4, b"Attention")
        .nested(5, attribute("scale", 1).float(2, 0.5))
        .nested(5, attribute("is_causal", 2).int(3, -1))
        .nested(5, attribute("mode", 3).bytes(4, b"tanh"))
        .nested(5, attribute("constant", 4).nested(5, tensor))
        .nested(5, attribute("floats", 6).float(7, 1.0).float(7, 2.0))
        .nested(5, attribute("axes", 7).int(8, 3).packed(8, &[-2, 300]))
        .nested(5, attribute("absent", 2))
        .nested(5, attribute("body", 5).nested(6, Message::default()))
}

fn model(nodes: &[Message]) -> Message {
    let graph = nodes.iter().fold(Message::default(), |graph, node| graph.nested(1, node.clone()));
    let graph = graph.nested(11, value("Q", 1)).nested(11, value("V", 1)).nested(12, value("Y", 1));
    let opset = Message::default().bytes(1, b"").int(2, 23);
    Message::default().int(1, 10).nested(8, opset).nested(7, graph)
}

/// A node test in a folder of its own.
struct Case(PathBuf, #[expect(dead_code, reason = "removed when dropped")] Folder);

impl Case {
    fn new(name: &str, model: &Message, files: &[(&str, &[u8])]) -> Self {
        let folder = Folder::new();
        let case = folder.file(name);
        std::fs::create_dir_all(case.join("test_data_set_0")).unwrap();
        std::fs::write(case.join("model.onnx"), &model.0).unwrap();
        for (file, bytes) in files {
            std::fs::write(case.join("test_data_set_0").join(file), bytes).unwrap();
        }
        Case(case, folder)
    }
}

#[test]
fn node_is_read_with_its_attributes() {
    let bytes = model(&[node()]).0;
    let model = read_model(Chunk::whole(&bytes)).unwrap();
    assert_eq!(model.opset_version(""), Some(23));
    assert_eq!(model.opset_version("ai.onnx"), Some(23));
    assert_eq!(model.opset_version("ai.onnx.ml"), None);
    let node = &model.graph.nodes[0];
    assert_eq!((node.op_type.as_str(), node.domain.as_str()), ("Attention", ""));
    assert_eq!(node.inputs, ["Q", "", "V"]);
    assert_eq!(node.outputs, ["Y"]);
    assert_eq!(node.attribute("scale").and_then(AttributeValue::as_float), Some(0.5));
    assert_eq!(node.attribute("is_causal").and_then(AttributeValue::as_int), Some(-1));
    assert_eq!(node.attribute("mode").and_then(AttributeValue::as_text), Some("tanh"));
    assert_eq!(node.attribute("axes").and_then(AttributeValue::as_ints), Some(&[3, -2, 300][..]));
    assert_eq!(node.attribute("floats"), Some(&AttributeValue::Floats(vec![1.0, 2.0])));
    assert_eq!(node.attribute("absent").and_then(AttributeValue::as_int), Some(0));
    assert_eq!(node.attribute("body"), Some(&AttributeValue::Graph(Box::default())));
    let Some(AttributeValue::Tensor(tensor)) = node.attribute("constant") else { panic!("a tensor") };
    assert_eq!(tensor.to_f64(), Some(vec![1.0, 2.0]));
    assert_eq!(node.attribute("nothing"), None);
}

fn read(message: &Message) -> Result<NamedTensor, String> {
    read_tensor(Chunk::whole(&message.0)).map_err(|error| error.to_string())
}

#[test]
fn typed_fields_and_raw_bytes_give_the_same_tensor() {
    let check = |code, field, typed: &[i64], raw: &[u8], expected: &[f64]| {
        let shape = [expected.len() as i64];
        let from_typed = read(&tensor_header(&shape, code).packed(field, typed)).unwrap();
        let one_by_one =
            typed.iter().fold(tensor_header(&shape, code), |message, &value| message.int(field, value));
        let from_raw = read(&tensor_header(&shape, code).bytes(9, raw)).unwrap();
        assert_eq!(from_typed, from_raw);
        assert_eq!(read(&one_by_one).unwrap(), from_raw);
        assert_eq!(from_raw.to_f64().unwrap(), expected);
    };
    check(2, 5, &[0, 255], &[0, 255], &[0.0, 255.0]);
    check(3, 5, &[-1, 127], &[255, 127], &[-1.0, 127.0]);
    check(5, 5, &[-2], &[0xfe, 0xff], &[-2.0]);
    check(6, 5, &[-2], &[0xfe, 0xff, 0xff, 0xff], &[-2.0]);
    check(7, 7, &[-2], &[0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], &[-2.0]);
    check(9, 5, &[1, 0], &[1, 0], &[1.0, 0.0]);
    check(10, 5, &[0x3c00, 0xc000], &[0x00, 0x3c, 0x00, 0xc0], &[1.0, -2.0]);
    check(12, 11, &[0xffff_ffff], &[255; 4], &[4294967295.0]);
    check(16, 5, &[0x3f80, 0xc000], &[0x80, 0x3f, 0x00, 0xc0], &[1.0, -2.0]);
    check(17, 5, &[0x38], &[0x38], &[1.0]);
    check(18, 5, &[0x40], &[0x40], &[1.0]);
    check(19, 5, &[0x3c], &[0x3c], &[1.0]);
    check(20, 5, &[0x40], &[0x40], &[1.0]);
    check(21, 5, &[0xf1, 0x02], &[0xf1, 0x02], &[1.0, 15.0, 2.0]);
    check(22, 5, &[0xf1, 0x08], &[0xf1, 0x08], &[1.0, -1.0, -8.0]);
    check(23, 5, &[0xa7], &[0xa7], &[6.0, -1.0]);
    check(24, 5, &[127], &[127], &[1.0]);
    check(25, 5, &[0b11_10_01_00, 1], &[0b11_10_01_00, 1], &[0.0, 1.0, 2.0, 3.0, 1.0]);
    check(26, 5, &[0b11_10_01_00], &[0b11_10_01_00], &[0.0, 1.0, -2.0, -1.0]);
    let floats = tensor_header(&[2], 1).bytes(4, &[0, 0, 128, 63, 0, 0, 0, 64]);
    assert_eq!(read(&floats).unwrap().to_f64(), Some(vec![1.0, 2.0]));
    let doubles = tensor_header(&[], 11).bytes(10, &1.5f64.to_le_bytes());
    assert_eq!(read(&doubles).unwrap().to_f64(), Some(vec![1.5]));
    let strings = read(&tensor_header(&[2], 8).bytes(6, b"a").bytes(6, b"\xff")).unwrap();
    assert_eq!((strings.data_type, strings.to_f64()), (DataType::String, None));
    assert_eq!(read(&tensor_header(&[0, 3], 1)).unwrap().to_f64(), Some(vec![]));
}

#[test]
fn inconsistent_tensor_is_an_error() {
    let check = |message: Message, expected: &str| assert_eq!(read(&message).unwrap_err(), expected);
    check(Message::default(), "at byte 0: `data_type` is missing");
    check(tensor_header(&[1], 99), "at byte 2: 99 is not a known `data_type`");
    check(tensor_header(&[-1], 1), "at byte 0: [-1] is not a shape");
    check(tensor_header(&[i64::MAX, 2], 1), "at byte 0: [9223372036854775807, 2] is not a shape");
    check(
        tensor_header(&[3], 1).bytes(9, &[0; 8]),
        "at byte 0: `raw_data` has 8 entries, but the shape requires 12",
    );
    check(tensor_header(&[1], 1), "at byte 0: `float_data` has 0 entries, but the shape requires 4");
    check(
        tensor_header(&[1], 3).packed(5, &[128]),
        "at byte 0: 128 in `int32_data` does not fit the element type",
    );
    check(
        tensor_header(&[1], 2).packed(5, &[-1]),
        "at byte 0: -1 in `int32_data` does not fit the element type",
    );
    check(tensor_header(&[1], 1).packed(5, &[1]), "at byte 0: `int32_data` is not float_data");
    check(
        tensor_header(&[1], 2).packed(5, &[1]).bytes(9, &[1]),
        "at byte 0: `int32_data` is given together with another data field",
    );
    check(
        tensor_header(&[1], 1).int(14, 1),
        "at byte 0: external data: `external_data` and `data_location` disagree with the data fields",
    );
    check(tensor_header(&[], 1).int(8, 0), "at byte 2: `name` is not length-delimited");
}

#[test]
fn case_tensors_follow_the_order_of_the_node() {
    let tensor = |value: u8| tensor_header(&[1], 2).bytes(9, &[value]).0;
    let files = [("input_0.pb", tensor(1)), ("input_1.pb", tensor(2)), ("output_0.pb", tensor(3))];
    let files = files.each_ref().map(|(file, bytes)| (*file, bytes.as_slice()));
    let folder = Case::new("test_whole", &model(&[node()]), &files);
    let LoadedCase::Loaded(case) = load_case(&folder.0).unwrap() else { panic!("a case of one node") };
    assert_eq!((case.name.as_str(), case.opset_version), ("test_whole", 23));
    let data_set = &case.data_sets[0];
    let first =
        |tensor: &Option<NamedTensor>| tensor.as_ref().map(|tensor| (tensor.name.clone(), tensor.to_f64()));
    let inputs: Vec<_> = data_set.inputs.iter().map(first).collect();
    assert_eq!(inputs, [Some(("Q".into(), Some(vec![1.0]))), None, Some(("V".into(), Some(vec![2.0])))]);
    assert_eq!(first(&data_set.outputs[0]), Some(("Y".into(), Some(vec![3.0]))));

    std::fs::write(folder.0.join("test_data_set_0/input_1.pb"), &tensor(2)[..5]).unwrap();
    let error = load_case(&folder.0).unwrap_err().to_string();
    assert!(error.contains("input_1.pb: at byte"), "{error}");
    std::fs::remove_file(folder.0.join("test_data_set_0/input_1.pb")).unwrap();
    let error = load_case(&folder.0).unwrap_err().to_string();
    assert!(error.ends_with("test_data_set_0: 1 files `input_…` for 2 values of the graph"), "{error}");
    std::fs::remove_file(folder.0.join("model.onnx")).unwrap();
    let error = load_case(&folder.0).unwrap_err().to_string();
    assert!(error.contains("model.onnx: "), "{error}");
}

#[test]
fn unsupported_models_are_skipped_with_a_reason() {
    let check = |name: &str, model: &Message, expected: SkipReason| {
        let folder = Case::new(name, model, &[]);
        match load_case(&folder.0).unwrap() {
            LoadedCase::Skipped { reason, .. } => assert_eq!(reason, expected),
            LoadedCase::Loaded(case) => panic!("{case:?} was not skipped"),
        }
    };
    check("test_gelu_expanded", &model(&[node()]), SkipReason::Expanded);
    check("test_adam_expanded_ver18", &model(&[node()]), SkipReason::Expanded);
    check("test_two", &model(&[node(), node()]), SkipReason::NodeCount { count: 2 });
    check("test_none", &model(&[]), SkipReason::NodeCount { count: 0 });
    let functions = model(&[node()]).nested(25, Message::default());
    check("test_function", &functions, SkipReason::LocalFunctions);
    let graph = Message::default().nested(1, node()).nested(11, value("xs", 4));
    let kind = lz_onnx_conformance::model::ValueKind::Sequence;
    let sequence = Message::default().nested(7, graph);
    check("test_sequence", &sequence, SkipReason::NotATensor { value: "xs".into(), kind });
}

/// One change to a buffer, at a random index.
#[derive(Clone, Debug)]
enum Mutation {
    Set(prop::sample::Index, u8),
    Flip(prop::sample::Index, u8),
    Insert(prop::sample::Index, u8),
    Remove(prop::sample::Index),
    Truncate(prop::sample::Index),
    Repeat(prop::sample::Index, prop::sample::Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    use prop::sample::Index;
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Set(at, byte)),
        (any::<Index>(), 0..8u8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Insert(at, byte)),
        any::<Index>().prop_map(Mutation::Remove),
        any::<Index>().prop_map(Mutation::Truncate),
        (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Mutation::Repeat(from, to)),
    ]
}

fn mutate(bytes: &mut Vec<u8>, mutation: &Mutation) {
    let length = bytes.len();
    if length == 0 {
        return;
    }
    match mutation {
        Mutation::Set(at, byte) => bytes[at.index(length)] = *byte,
        Mutation::Flip(at, bit) => bytes[at.index(length)] ^= 1 << bit,
        Mutation::Insert(at, byte) => bytes.insert(at.index(length), *byte),
        Mutation::Remove(at) => drop(bytes.remove(at.index(length))),
        Mutation::Truncate(at) => bytes.truncate(at.index(length)),
        Mutation::Repeat(from, to) => {
            let (from, to) = (from.index(length), to.index(length));
            let piece = bytes[from.min(to)..from.max(to)].to_vec();
            bytes.splice(from..from, piece);
        }
    }
}

/// Reads a buffer as both messages; an error must point into the buffer, and a tensor must match its shape.
fn read_both(bytes: &[u8]) -> Result<(), TestCaseError> {
    match read_tensor(Chunk::whole(bytes)) {
        Ok(tensor) => {
            if let Some(values) = tensor.to_f64() {
                prop_assert_eq!(values.len(), tensor.element_count());
            }
        }
        Err(error) => prop_assert!(error.offset <= bytes.len(), "{}", error),
    }
    if let Err(error) = read_model(Chunk::whole(bytes)) {
        prop_assert!(error.offset <= bytes.len(), "{}", error);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn mutated_models_never_panic(mutations in prop::collection::vec(mutation(), 1..6)) {
        let mut bytes = model(&[node(), node()]).0;
        mutations.iter().for_each(|mutation| mutate(&mut bytes, mutation));
        read_both(&bytes)?;
    }

    #[test]
    fn mutated_tensors_never_panic(
        code in 0..30i64,
        field in prop::sample::select(vec![4u32, 5, 6, 7, 9, 10, 11]),
        data in prop::collection::vec(any::<u8>(), 0..40),
        dimensions in prop::collection::vec(0..9i64, 0..4),
        mutations in prop::collection::vec(mutation(), 0..4),
    ) {
        let mut bytes = tensor_header(&dimensions, code).bytes(8, b"x").bytes(field, &data).0;
        mutations.iter().for_each(|mutation| mutate(&mut bytes, mutation));
        read_both(&bytes)?;
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read_both(&bytes)?;
    }
}
