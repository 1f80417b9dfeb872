//! The terms of a pass over the model: how long each resource is busy (FlexGen A.3).

use plimsoll_core::Dtype;
use plimsoll_core::compression::Compression;
use plimsoll_core::lower::CHUNK_BYTES_MIN;
use plimsoll_core::model::ModelSpec;
use plimsoll_core::placement::PAGE_BYTES;
use plimsoll_core::policy::{Policy, Schedule};
use plimsoll_core::program::{AttentionPart, Gemms, HostPages, Op, ResourceKind, Stage};
use plimsoll_core::sparse::Picked;
use plimsoll_core::units::{Bytes, Seconds};

use super::{ClosedForms, Linear};

/// The resources of the terms. A.3's names: comp, ctog, gtoc, dtoc, ctod; and attention on the CPU,
/// which A.3 adds to comp.
const KINDS: [ResourceKind; 6] = [
    ResourceKind::Gpu,
    ResourceKind::H2d,
    ResourceKind::D2h,
    ResourceKind::DiskRead,
    ResourceKind::DiskWrite,
    ResourceKind::Cpu,
];

/// One pass over the model for one block.
#[derive(Debug, Clone)]
pub struct Phase {
    terms: [Linear; 6],
    paths: Vec<Linear>,
    overlap: bool,
    /// Barriers, which nothing overlaps.
    fixed: f64,
}

impl Phase {
    /// This prefill spread over some passes with `passes` decode passes' work beside it: what binds one
    /// hides what binds the other.
    pub(super) fn beside(&self, decode: &Phase, passes: f64) -> Phase {
        let both = |prefill: &Linear, decode: &Linear| *prefill + *decode * passes;
        let mut terms = self.terms;
        for (term, decode) in terms.iter_mut().zip(&decode.terms) {
            *term = both(term, decode);
        }
        // Decode may have chains that prefill has not; there the GPU is what prefill adds to them.
        let gpu = &self.terms[0];
        let same = self.paths.len() == decode.paths.len();
        let paths = decode.paths.iter().enumerate().map(|(index, path)| {
            let prefill = if same { &self.paths[index] } else { gpu };
            both(prefill, path)
        });
        Phase {
            terms,
            paths: paths.collect(),
            overlap: self.overlap,
            fixed: self.fixed + decode.fixed * passes,
        }
    }

    /// This so many times, one after another.
    pub(super) fn times(self, count: f64) -> Phase {
        Phase {
            terms: self.terms.map(|term| term * count),
            paths: self.paths.into_iter().map(|path| path * count).collect(),
            fixed: self.fixed * count,
            ..self
        }
    }

    /// This where a resource takes so many times as long.
    pub(super) fn slowed(&self, kind: ResourceKind, by: f64) -> Phase {
        let mut slowed = self.clone();
        let terms = slowed.terms.iter_mut().zip(KINDS);
        for (term, _) in terms.filter(|(_, of)| *of == kind) {
            *term = *term * by;
        }
        slowed
    }

    /// Seconds that each resource is busy, as functions of the shares.
    pub fn terms(&self) -> [(ResourceKind, &Linear); 6] {
        let mut terms = self.terms.iter();
        KINDS.map(|kind| (kind, terms.next().expect("as many terms as kinds")))
    }

    /// What the pass takes is the largest of these.
    pub fn rows(&self) -> Vec<Linear> {
        let fixed = Linear {
            constant: self.fixed,
            ..Linear::default()
        };
        let rows = self.terms.iter().chain(&self.paths);
        if self.overlap {
            return rows.map(|row| *row + fixed).collect();
        }
        // Nothing moves while anything computes.
        let computing = |kind| matches!(kind, ResourceKind::Gpu | ResourceKind::Cpu);
        let moves = self
            .terms()
            .into_iter()
            .filter(|(kind, _)| !computing(*kind));
        let moves = moves.map(|(_, row)| *row).chain(self.paths.iter().copied());
        let mut compute = fixed;
        for (_, row) in self
            .terms()
            .into_iter()
            .filter(|(kind, _)| computing(*kind))
        {
            compute += *row;
        }
        moves.map(|row| compute + row).collect()
    }

    /// Seconds of the pass for a policy's shares.
    pub fn seconds(&self, policy: &Policy) -> Seconds {
        let rows = self.rows();
        Seconds(rows.iter().map(|row| row.at(policy)).fold(0.0, f64::max))
    }

    /// Seconds that no shares can beat.
    pub fn lowest_s(&self) -> Seconds {
        Seconds(self.rows().iter().map(Linear::lowest).fold(0.0, f64::max))
    }

    pub(super) fn terms_at(&self, policy: &Policy) -> [(ResourceKind, Seconds); 6] {
        self.terms()
            .map(|(kind, term)| (kind, Seconds(term.at(policy))))
    }
}

/// Bytes of the slabs of the embedding, of a layer and of the head.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weights {
    embedding: Bytes,
    layer: Bytes,
    head: Bytes,
}

impl Weights {
    pub(super) fn of(model: &ModelSpec, dtype: Dtype, compression: Compression) -> Weights {
        let bytes = |block: u32| {
            let tensors = model.tensors(block);
            let bytes = tensors.iter().map(|t| compression.tensor_bytes(t, dtype));
            bytes.sum::<Bytes>().align_up(PAGE_BYTES)
        };
        Weights {
            embedding: bytes(0),
            layer: bytes(1),
            head: bytes(model.num_blocks() - 1),
        }
    }
}

/// A pass to be costed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pass<'a> {
    pub forms: &'a ClosedForms,
    pub policy: &'a Policy,
    /// In a GPU batch.
    pub sequences: u32,
    /// GPU batches in the block.
    pub batches: u32,
    /// New tokens a sequence.
    pub query_len: u32,
    /// Tokens that the newest sees.
    pub context_len: u32,
}

/// Terms by resource while they are added up.
#[derive(Debug, Clone, Copy, Default)]
struct Terms([Linear; 6]);

impl Terms {
    fn on(&mut self, kind: ResourceKind) -> &mut Linear {
        let index = KINDS.iter().position(|k| *k == kind);
        &mut self.0[index.expect("a term's resource")]
    }

    /// Adds seconds for all of the cache off the device.
    fn off_device(&mut self, kind: ResourceKind, seconds: f64) {
        let cache = &mut self.on(kind).cache;
        cache.host += seconds;
        cache.disk += seconds;
    }
}

impl Pass<'_> {
    pub(super) fn phase(&self) -> Phase {
        let layers = f64::from(self.forms.model.num_hidden_layers);
        // Of a layer: its halves are loaded, and pass activations on, each by itself.
        let steps = if self.policy.halves_layers() {
            2.0
        } else {
            1.0
        };
        let mut terms = Terms::default();
        self.compute(&mut terms);
        self.cache(&mut terms);
        let mut mid = Linear::default();
        if self.apart() {
            mid = self.mid(&mut terms);
        }
        let mut halves = Terms::default();
        self.weights(
            &mut halves,
            Bytes((self.slabs().layer.as_f64() / steps) as u64),
        );
        for kind in KINDS {
            *terms.on(kind) += *halves.on(kind) * steps;
        }
        let hidden = self.hidden();
        let mut sums = Terms::default();
        let mut ends = self.ends();
        for kind in KINDS {
            let h = *hidden.clone().on(kind);
            // Activations also go from the embedding to the first layer and from the last to the head.
            // A host's engines serve all of its stages.
            let users = match kind.is_of_host() {
                true => f64::from(self.policy.pipeline.stages_per_host),
                false => 1.0,
            };
            *sums.on(kind) = ((*terms.on(kind) + h * steps) * layers + h + *ends.on(kind)) * users;
        }
        let hidden = Terms(hidden.0.map(|row| row * steps));
        let paths = self.paths(&mut sums, &hidden, mid);
        let barrier = self.forms.cost.seconds(ResourceKind::Sync, &Op::Barrier).0;
        let policy = self.policy;
        let barriers = if policy.barrier {
            (layers * steps + 2.0) * f64::from(self.batches)
        } else {
            0.0
        };
        Phase {
            terms: sums.0,
            paths,
            overlap: policy.overlap,
            fixed: if policy.overlap {
                barriers * barrier
            } else {
                0.0
            },
        }
    }

    fn slabs(&self) -> &Weights {
        &self.forms.weights[usize::from(self.policy.compression.weights)]
    }

    fn is_prefill(&self) -> bool {
        self.context_len == self.query_len
    }

    fn cpu_attends(&self) -> bool {
        self.policy.cpu_attention && !self.is_prefill()
    }

    /// Tokens that the newest sees before itself.
    fn past_seen(&self) -> u32 {
        self.forms.model.past_seen(self.context_len - 1)
    }

    /// Past tokens whose values are read; none where attention is dense.
    fn picks(&self) -> Option<u32> {
        self.policy
            .picks(self.past_seen())
            .filter(|_| !self.is_prefill())
    }

    /// Whether values of rows off the device are collected on the host and weighed on the device.
    fn gathers(&self) -> bool {
        self.policy.gathers_values() && !self.is_prefill()
    }

    /// Whether attention of rows off the device has the CPU in its way.
    fn apart(&self) -> bool {
        self.cpu_attends() || self.gathers()
    }

    fn seconds(&self, on: ResourceKind, op: Op) -> f64 {
        self.forms.cost.seconds(on, &op).0
    }

    /// One move for each GPU batch.
    fn moves(&self, on: ResourceKind, bytes: u64, host: HostPages) -> f64 {
        f64::from(self.batches) * self.copy(on, Bytes(bytes), host)
    }

    fn copy(&self, on: ResourceKind, bytes: Bytes, host: HostPages) -> f64 {
        if bytes == Bytes::ZERO {
            return 0.0;
        }
        let op = Op::Move {
            bytes,
            from: Bytes::ZERO,
            to: Bytes::ZERO,
            host,
        };
        self.seconds(on, op)
    }

    fn linear(&self, stage: Stage, m: u32, gemms: Gemms) -> f64 {
        let packs = stage == Stage::Project && self.policy.compression.cache;
        let packed_elements = if packs {
            2 * self.forms.model.kv_size() * u64::from(m)
        } else {
            0
        };
        let seconds = |reused| {
            let op = Op::Linear {
                stage,
                m,
                gemms,
                position: self.context_len - self.query_len,
                reused,
                compressed: self.policy.compression.weights,
                packed_elements,
            };
            self.seconds(ResourceKind::Gpu, op)
        };
        // The first batch of a visit brings the weights, the others find them.
        seconds(false) + f64::from(self.batches - 1) * seconds(true)
    }

    /// Attention of all rows.
    fn attention(&self, on: ResourceKind, part: AttentionPart) -> f64 {
        let model = &self.forms.model;
        let op = Op::Attention {
            part,
            rows: self.rows(),
            group: model.num_attention_heads / model.num_key_value_heads,
            head_dim: model.head_dim,
            query_len: self.query_len,
            context_len: self.context_len,
            seen_len: self.past_seen() + 1,
            value_len: self.picks().unwrap_or(self.past_seen()) + 1,
            element_bytes: self.forms.dtype.size_bytes() as u32,
            compressed: self.policy.compression.cache,
        };
        f64::from(self.batches) * self.seconds(on, op)
    }

    fn compute(&self, terms: &mut Terms) {
        let (tokens, gemms) = (self.sequences * self.query_len, &self.forms.gemms);
        let products = self.linear(Stage::Project, tokens, gemms.project)
            + self.linear(Stage::Finish, tokens, gemms.finish);
        let attention = self.attention(ResourceKind::Gpu, AttentionPart::Whole);
        let gpu = terms.on(ResourceKind::Gpu);
        gpu.constant += products;
        if self.cpu_attends() {
            gpu.cache.device += attention;
            let part = match self.policy.copies_cache() {
                true => AttentionPart::Copied,
                false => AttentionPart::Whole,
            };
            let on_cpu = self.attention(ResourceKind::Cpu, part);
            terms.off_device(ResourceKind::Cpu, on_cpu);
            if part == AttentionPart::Copied {
                // What was read from disk is such a copy. A new token goes home in the end.
                let tokens = [u64::from(self.context_len - self.query_len), 1];
                let copies = tokens.map(|tokens| {
                    self.moves(
                        ResourceKind::Cpu,
                        tokens * self.record_bytes(),
                        HostPages::Pageable,
                    )
                });
                terms.on(ResourceKind::Cpu).cache.host += copies.iter().sum::<f64>();
            }
        } else if let Some(picks) = self.picks() {
            gpu.cache.device += attention;
            let halves = [AttentionPart::Scores, AttentionPart::Values];
            let halves = halves.map(|part| self.attention(ResourceKind::Gpu, part));
            terms.off_device(ResourceKind::Gpu, halves.iter().sum());
            let gather = Op::Gather {
                rows: self.rows(),
                picks,
                head: self.head_bytes(),
            };
            let gather = f64::from(self.batches) * self.seconds(ResourceKind::Cpu, gather);
            terms.off_device(ResourceKind::Cpu, gather);
        } else {
            gpu.constant += attention;
        }
    }

    /// Rows of a GPU batch's cache.
    fn rows(&self) -> u32 {
        self.sequences * self.forms.model.num_key_value_heads
    }

    /// Bytes of a row's keys, or values, at one position.
    fn head_bytes(&self) -> Bytes {
        let compression = self.policy.compression;
        compression.cache_head_bytes(self.forms.model.head_dim, self.forms.dtype)
    }

    /// Bytes of one position of a GPU batch's cache in one layer.
    fn record_bytes(&self) -> u64 {
        u64::from(self.rows()) * 2 * self.head_bytes().0
    }

    /// Loads of the past, unless the CPU attends where it lives, and stores of the new tokens.
    fn cache(&self, terms: &mut Terms) {
        let record = self.record_bytes();
        let past = record * u64::from(self.context_len - self.query_len);
        let new = record * u64::from(self.query_len);
        if !self.cpu_attends() {
            // Keys alone where values are collected; those are on the path of the batch.
            let loaded = if self.gathers() { past / 2 } else { past };
            for (kind, bytes) in [(ResourceKind::H2d, loaded), (ResourceKind::D2h, new)] {
                let home = HostPages::of(self.policy.page_locked.cache);
                let cache = &mut terms.on(kind).cache;
                cache.host += self.moves(kind, bytes, home);
                cache.disk += self.moves(kind, bytes, HostPages::Locked);
            }
        }
        for (kind, bytes) in [
            (ResourceKind::DiskRead, past),
            (ResourceKind::DiskWrite, new),
        ] {
            terms.on(kind).cache.disk += self.moves(kind, bytes, HostPages::Locked);
        }
    }

    /// What goes to the CPU for a sequence and comes back, in bytes: queries, keys and values, and
    /// attention's output; or the positions that were picked, and their values.
    fn there_and_back(&self) -> (u64, u64) {
        let model = &self.forms.model;
        let element = self.forms.dtype.size_bytes();
        match self.picks() {
            Some(picks) if self.gathers() => {
                let picked = Picked {
                    rows: model.num_key_value_heads,
                    group: 1,
                    picks,
                };
                let values = picked.values_bytes(self.head_bytes());
                (picked.positions_bytes().0, values.0)
            }
            _ => {
                let there = (model.q_size() + 2 * model.kv_size()) * element;
                (there, model.q_size() * element)
            }
        }
    }

    /// The way to the CPU and back; returns both added up.
    fn mid(&self, terms: &mut Terms) -> Linear {
        let (there, back) = self.there_and_back();
        let mut both = Linear::default();
        // The chain changes engines four times: to the copy, the CPU, the copy back and the GPU. The first and the last are between
        // streams.
        let [usual, between_streams] = self.forms.cost.profile().compute.handoffs();
        let handed = f64::from(self.batches) * 2.0 * (usual.0 + between_streams.0);
        both.cache.host += handed;
        both.cache.disk += handed;
        for (kind, bytes) in [(ResourceKind::D2h, there), (ResourceKind::H2d, back)] {
            let bytes = u64::from(self.sequences) * bytes;
            let seconds = self.moves(kind, bytes, HostPages::Locked);
            for cache in [&mut terms.on(kind).cache, &mut both.cache] {
                cache.host += seconds;
                cache.disk += seconds;
            }
        }
        both
    }

    /// One load of a block's weights that are not on the device, in the lowering's chunks.
    fn weights(&self, terms: &mut Terms, slab: Bytes) {
        let most = if self.policy.loads_weights_at_once() {
            1
        } else {
            u64::from(self.batches)
        };
        let chunks = slab.0.div_ceil(CHUNK_BYTES_MIN).clamp(1, most);
        let home = self.policy.weights_on_host();
        let chunk = Bytes(slab.0.div_ceil(chunks));
        let copies = |kind, host| chunks as f64 * self.copy(kind, chunk, host);
        let h2d = &mut terms.on(ResourceKind::H2d).weights;
        h2d.host += copies(ResourceKind::H2d, home);
        h2d.disk += copies(ResourceKind::H2d, HostPages::Locked);
        let reads = copies(ResourceKind::DiskRead, HostPages::Locked);
        terms.on(ResourceKind::DiskRead).weights.disk += reads;
    }

    /// One load and one store of the block's activations.
    fn hidden(&self) -> Terms {
        let token = u64::from(self.forms.model.hidden_size) * self.forms.dtype.size_bytes();
        let bytes = u64::from(self.sequences) * u64::from(self.query_len) * token;
        let mut terms = Terms::default();
        for kind in [ResourceKind::H2d, ResourceKind::D2h] {
            let home = HostPages::of(self.policy.page_locked.activations);
            let shares = &mut terms.on(kind).activations;
            shares.host += self.moves(kind, bytes, home);
            shares.disk += self.moves(kind, bytes, HostPages::Locked);
        }
        for kind in [ResourceKind::DiskRead, ResourceKind::DiskWrite] {
            let seconds = self.moves(kind, Bytes(bytes).align_up(PAGE_BYTES).0, HostPages::Locked);
            terms.on(kind).activations.disk += seconds;
        }
        terms
    }

    /// The embedding and the head, which A.3 leaves out.
    fn ends(&self) -> Terms {
        let mut terms = Terms::default();
        self.weights(&mut terms, self.slabs().embedding);
        self.weights(&mut terms, self.slabs().head);
        let tokens = self.sequences * self.query_len;
        let op = Op::Embed {
            tokens,
            hidden_size: self.forms.model.hidden_size,
            position: self.context_len - self.query_len,
        };
        let embed = f64::from(self.batches) * self.seconds(ResourceKind::Gpu, op);
        let head = self.linear(Stage::Head, self.sequences, self.forms.gemms.head);
        terms.on(ResourceKind::Gpu).constant += embed + head;
        if self.is_prefill() {
            let prompt = self.moves(ResourceKind::H2d, u64::from(tokens) * 4, HostPages::Locked);
            terms.on(ResourceKind::H2d).constant += prompt;
        }
        let ids = self.moves(
            ResourceKind::D2h,
            u64::from(self.sequences) * 4,
            HostPages::Locked,
        );
        terms.on(ResourceKind::D2h).constant += ids;
        terms
    }

    /// With a barrier the first batch's step of each layer contains all of the next layer's loads, and
    /// the other batches' computation comes after it.
    fn first_steps(&self, sums: &mut Terms, copied: Linear) -> [Linear; 2] {
        let one = 1.0 / f64::from(self.batches);
        let step = |all: Linear| all.weights_part() * (1.0 - one) + all * one;
        let mut chain = *sums.on(ResourceKind::Gpu);
        if self.apart() {
            chain += *sums.on(ResourceKind::Cpu);
        }
        let others = chain * (1.0 - one);
        let read = *sums.on(ResourceKind::DiskRead) + copied;
        [
            step(*sums.on(ResourceKind::H2d)) + others,
            step(read) + others,
        ]
    }

    /// What the GPU does in a layer once the values that were collected are there. With a barrier they
    /// come behind all other loads of the step.
    fn after_values(&self) -> Linear {
        let tokens = self.sequences * self.query_len;
        let values = self.attention(ResourceKind::Gpu, AttentionPart::Values);
        let seconds = values + self.linear(Stage::Finish, tokens, self.forms.gemms.finish);
        let mut after = Linear::default();
        after.cache.host = seconds;
        after.cache.disk = seconds;
        after
    }

    /// Chains that overlap cannot shorten.
    ///
    /// A GPU batch meets itself in the next layer, so one batch alone has its activations' moves in
    /// its way. Attention on the CPU, or its collecting of values, hides behind the projection of one other batch: the GPU is two
    /// batches into the chain of projection, attention and finish, and where it cannot be, or where
    /// resources meet after every batch (A.3), the chain is one sum. With a barrier a step also
    /// contains what it reads from disk and then copies on.
    fn paths(&self, sums: &mut Terms, hidden: &Terms, mid: Linear) -> Vec<Linear> {
        let policy = self.policy;
        let layers = f64::from(self.forms.model.num_hidden_layers);
        let mut paths = Vec::new();
        let copied = sums.on(ResourceKind::H2d).disk_part();
        let stored = sums.on(ResourceKind::D2h).disk_part();
        let through_host = [
            *sums.on(ResourceKind::DiskRead) + copied,
            *sums.on(ResourceKind::DiskWrite) + stored,
        ];
        if !policy.overlap {
            return through_host.into();
        }
        let gpu = *sums.on(ResourceKind::Gpu);
        if self.apart() {
            let chain = gpu + *sums.on(ResourceKind::Cpu) + mid * layers;
            let held_back = !policy.barrier && self.batches > 1;
            paths.push(chain * if held_back { 0.5 } else { 1.0 });
        }
        if self.batches == 1 || policy.schedule == Schedule::Row {
            let moves = hidden
                .0
                .iter()
                .fold(Linear::default(), |sum, row| sum + *row);
            paths.push(gpu + moves * layers);
        }
        if policy.barrier && self.gathers() {
            let after = self.after_values() * layers;
            paths.extend([*sums.on(ResourceKind::H2d) + after, through_host[0] + after]);
        }
        if policy.barrier {
            paths.extend(through_host);
            paths.extend(self.first_steps(sums, copied));
        }
        paths
    }
}
