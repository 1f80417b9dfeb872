//! A machine at another pace takes for each kind of work as much longer as that pace says of a task.

use plimsoll_core::Dtype;
use plimsoll_core::hardware::{HardwareProfile, LinkSlowness, Slowness, embedded};
use plimsoll_core::program::{AttentionPart, Gemm, Gemms, HostPages, Op, ResourceKind, Stage};
use plimsoll_core::units::{Bytes, Seconds};
use plimsoll_sim::CostModel;

/// A different factor for each.
const SLOWNESS: Slowness = Slowness {
    few_tokens: 1.1,
    many_tokens: 1.3,
    copy: 1.7,
    h2d: LinkSlowness {
        page_locked: 1.9,
        pageable: 2.3,
    },
    d2h: LinkSlowness {
        page_locked: 2.9,
        pageable: 3.1,
    },
    disk_read: 3.7,
};

fn moved(page_locked: bool) -> Op {
    Op::Move {
        bytes: Bytes(1 << 30),
        from: Bytes(0),
        to: Bytes(0),
        host: HostPages::of(page_locked),
    }
}

fn product(m: u32) -> Op {
    Op::Linear {
        stage: Stage::Finish,
        m,
        gemms: Gemms::new(&[Gemm { n: 4096, k: 4096 }]),
        position: 0,
        reused: false,
        compressed: false,
        packed_elements: 0,
    }
}

fn attention(query_len: u32) -> Op {
    Op::Attention {
        part: AttentionPart::Whole,
        rows: 512,
        group: 1,
        head_dim: 128,
        query_len,
        context_len: 1024,
        seen_len: 1024,
        value_len: 1024,
        element_bytes: 2,
        compressed: false,
    }
}

/// Without what takes as long for any size, which no pace is known of.
fn profile(name: &str) -> HardwareProfile {
    let mut profile = embedded::profile(name).expect("embedded");
    let (links, compute) = (&mut profile.links, &mut profile.compute);
    for latency in [
        &mut links.h2d.latency,
        &mut links.d2h.latency,
        &mut links.disk_read.latency,
        &mut links.disk_write.latency,
    ]
    .into_iter()
    .chain(links.peers.iter_mut().map(|peer| &mut peer.latency))
    .chain([&mut compute.launch, &mut compute.cpu_launch])
    {
        latency.value = Seconds::ZERO;
    }
    profile
}

#[test]
fn each_kind_of_work_takes_as_much_longer_as_the_pace_says() {
    for name in ["t4", "t4x4", "gh200"] {
        let (usual, slow) = (profile(name), profile(name).at_pace(&SLOWNESS));
        let cost = [&usual, &slow].map(|machine| CostModel::new(machine, Dtype::F16));
        for (on, op) in [
            (ResourceKind::H2d, moved(true)),
            (ResourceKind::H2d, moved(false)),
            (ResourceKind::D2h, moved(true)),
            (ResourceKind::D2h, moved(false)),
            (ResourceKind::DiskRead, moved(true)),
            (ResourceKind::DiskWrite, moved(true)),
            (ResourceKind::Pin, moved(true)),
            (ResourceKind::Cpu, moved(false)),
            (ResourceKind::Cpu, attention(1)),
            (ResourceKind::Gpu, attention(1)),
            (ResourceKind::Gpu, attention(1024)),
            (ResourceKind::Gpu, product(1)),
            (ResourceKind::Gpu, product(4096)),
        ] {
            let [usual, slow] = [0, 1].map(|i| cost[i].seconds(on, &op).0);
            let (factor, said) = (slow / usual, SLOWNESS.of(on, &op));
            assert!(
                (factor / said - 1.0).abs() < 1e-9,
                "{name}, {on:?}, {op:?}: {factor}, and {said} said"
            );
        }
    }
}
