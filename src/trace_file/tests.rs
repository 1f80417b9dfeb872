use std::sync::Arc;

use plimsoll_core::placement::LayerPart;
use plimsoll_core::program::{
    Access, Arg, Buffer, Cell, Content, Gemm, Gemms, HostPages, Machine, NewTask, Op, ResourceKind,
    Stage,
};
use plimsoll_core::tier::{PerTier, Tier};
use plimsoll_core::trace::Trace;
use plimsoll_core::units::{Bytes, Seconds};
use serde_json::Value;

use super::*;

/// A weight copy, a product that reads what was copied, and one of a later block, so that block 4
/// is not the head.
fn program(machine: &Machine) -> Program {
    let mut program = Program::new();
    let mut buffer = |tier, resident| {
        program.buffer(Buffer {
            arena: machine.arena(tier, 0).unwrap(),
            offset: Bytes::ZERO,
            bytes: Bytes(4096),
            content: Content::Weights {
                part: LayerPart::Whole,
                block: 4,
                home: Tier::Host,
            },
            resident,
        })
    };
    let (home, slot) = (buffer(Tier::Host, true), buffer(Tier::Device, false));
    let copy = program.op(Op::Move {
        bytes: Bytes(4096),
        from: Bytes::ZERO,
        to: Bytes::ZERO,
        host: HostPages::Locked,
    });
    let product = program.op(Op::Linear {
        stage: Stage::Project,
        m: 8,
        gemms: Gemms::new(&[Gemm { n: 64, k: 32 }]),
        position: 0,
        reused: false,
        compressed: false,
        packed_elements: 0,
    });
    let cell = Cell {
        round: 0,
        pass: 2,
        block: 4,
        batch: 1,
    };
    let arg = |buffer, access| Arg { buffer, access };
    let first = program.push(NewTask {
        op: copy,
        resource: machine.resource(ResourceKind::H2d, 0).unwrap(),
        cell,
        deps: &[],
        args: &[arg(home, Access::Read), arg(slot, Access::Write)],
        takes: &[slot],
        gives: &[],
    });
    program.push(NewTask {
        op: product,
        resource: machine.resource(ResourceKind::Gpu, 0).unwrap(),
        cell: Cell { block: 4, ..cell },
        deps: &[first],
        args: &[arg(slot, Access::Read)],
        takes: &[],
        gives: &[slot],
    });
    program.push(NewTask {
        op: product,
        resource: machine.resource(ResourceKind::Gpu, 0).unwrap(),
        cell: Cell { block: 9, ..cell },
        deps: &[],
        args: &[],
        takes: &[],
        gives: &[],
    });
    program
}

/// The program, run.
fn run(copy_s: f64) -> Run {
    let machine = Machine::single_gpu(PerTier::from_fn(|_| Bytes(1 << 20)));
    let program = program(&machine);
    let mut trace = Trace::default();
    trace.extend_to(program.end_task());
    let span = |start: f64, end: f64| Span {
        start: Seconds(start),
        end: Seconds(end),
    };
    trace.record(TaskId(0), span(0.0, copy_s));
    trace.record(TaskId(1), span(copy_s, copy_s + 0.5));
    trace.record(TaskId(2), span(copy_s + 0.5, copy_s + 0.6));
    Run {
        machine,
        pieces: vec![Arc::new(program)],
        trace,
    }
}

fn events(bytes: &[u8]) -> Vec<Value> {
    let whole: Value = serde_json::from_slice(bytes).expect("a trace is JSON");
    whole["traceEvents"].as_array().unwrap().clone()
}

#[test]
fn a_file_named_gz_is_the_same_in_gzip() {
    let dir = tempfile::tempdir().expect("a directory");
    let run = run(0.25);
    let process = Process {
        name: "predicted",
        run: &run,
    };
    let written = |name: &str| {
        let file = dir.path().join(name);
        write_file(&file, |out| write_run(out, process)).expect("written");
        std::fs::read(file).expect("there")
    };
    let (plain, packed) = (written("trace.json"), written("trace.json.gz"));
    assert!(packed.len() < plain.len() / 2);
    let mut unpacked = Vec::new();
    let mut decoder = flate2::read::GzDecoder::new(&*packed);
    io::copy(&mut decoder, &mut unpacked).expect("gzip");
    assert!(unpacked == plain);
}

#[test]
fn an_event_has_its_track_its_name_and_microseconds() {
    let run = run(0.25);
    let mut out = Vec::new();
    let process = Process {
        name: "predicted",
        run: &run,
    };
    write_run(&mut out, process).unwrap();
    let events = events(&out);
    let find = |name: &str| events.iter().find(|e| e["name"] == name).unwrap();
    let product = find("project L3 b1 p2");
    assert_eq!(product["ts"], 250_000.0);
    assert_eq!(product["dur"], 500_000.0);
    assert_eq!(product["args"]["task"], 1);
    assert_eq!(
        product["args"]["op"],
        "project: [8x32]x[32x64], from position 0"
    );
    assert_eq!(find("weights L3 p2")["args"]["bytes"], 4096);
    let track = events
        .iter()
        .find(|e| e["name"] == "thread_name" && e["tid"] == product["tid"]);
    assert_eq!(track.unwrap()["args"]["name"], "gpu");
    let device: Vec<(f64, u64)> = events
        .iter()
        .filter(|e| e["ph"] == "C" && e["name"] == "device")
        .map(|e| {
            (
                e["ts"].as_f64().unwrap(),
                e["args"]["alive_bytes"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(device, [(0.0, 0), (0.0, 4096), (750_000.0, 0)]);
}

#[test]
fn two_runs_of_one_program_are_joined_by_task() {
    let (predicted, measured) = (run(0.25), run(0.5));
    let mut out = Vec::new();
    let process = |name, run| Process { name, run };
    write_side_by_side(
        &mut out,
        process("predicted", &predicted),
        process("measured", &measured),
    )
    .unwrap();
    let events = events(&out);
    let copies: Vec<&Value> = events.iter().filter(|e| e["args"]["task"] == 0).collect();
    assert_eq!(copies.len(), 2);
    assert_eq!(
        (&copies[0]["pid"], &copies[1]["pid"]),
        (&1.into(), &2.into())
    );
    assert_eq!(copies[0]["args"]["other_dur_us"], copies[1]["dur"]);
}

/// A reader that sees one begin a nanosecond before another ended drops it.
#[test]
fn events_of_a_track_do_not_overlap_by_a_rounded_digit() {
    for copy_s in (1..50_u32).map(|i| f64::from(i).sqrt()) {
        let run = run(copy_s);
        let mut out = Vec::new();
        let process = Process {
            name: "predicted",
            run: &run,
        };
        write_run(&mut out, process).unwrap();
        let events = events(&out);
        let nanoseconds = |value: &Value| (value.as_f64().unwrap() * 1e3).round() as u64;
        let of_task = |task: u64| events.iter().find(|e| e["args"]["task"] == task).unwrap();
        let (first, second) = (of_task(1), of_task(2));
        assert_eq!(first["tid"], second["tid"]);
        let ended = nanoseconds(&first["ts"]) + nanoseconds(&first["dur"]);
        assert_eq!(ended, nanoseconds(&second["ts"]), "{copy_s}");
    }
}
