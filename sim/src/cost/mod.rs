//! The one function from a task to seconds.
//!
//! Every effect is a named term over the profile's curves: copies and disk by size, matrix products
//! by a roofline of arithmetic and device memory, attention by the cache that it reads, and a fixed
//! cost for each task. Who shares what with whom is not here: tasks alone are costed, the engine
//! slows those that run beside each other.

mod by_shape;
mod gemm;
mod host;
mod part;
mod span;

use plimsoll_core::Dtype;
use plimsoll_core::compression::{GROUP_BYTES, GROUP_ELEMENTS, Kept};
use plimsoll_core::extrapolation::SizeUnit;
use plimsoll_core::hardware::{
    CopyLink, Curve, GPU_ROWS_MOST, HardwareProfile, Implementation, Quantity, WeightRead,
    WeightsOnGpu,
};
use plimsoll_core::model::ModelSpec;
use plimsoll_core::placement::WeightPlacement;
use plimsoll_core::plan::Plan;
use plimsoll_core::program::{AttentionPart, Gemms, HostPages, Op, Resource, ResourceKind, Stage};
use plimsoll_core::tier::PerTier;
use plimsoll_core::units::{Bytes, Seconds};

use by_shape::ByShape;
use gemm::{GemmRates, Product};
pub use part::{Asked, Part};

/// Seconds of a task that runs alone.
#[derive(Debug, Clone)]
pub struct CostModel {
    profile: HardwareProfile,
    gemm: GemmRates,
    /// None where products and what is beside them were not told apart.
    by_shape: Option<ByShape>,
    cpu_gemm: GemmRates,
    /// Of f32, whatever the tensors are; none where those of another type would stand for them.
    f32: Option<GemmRates>,
    element_bytes: u64,
    /// How fast weights of that type are read that no cache holds; none where nobody knows.
    weight_read: Option<WeightRead>,
    /// Bytes of all weights; none where that is not known.
    weights: Option<f64>,
}

/// What times of a GPU's products with weights in 4 bits rest on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackedWeights {
    /// Rates of their own.
    Measured,
    /// What was measured of unpacking, which comes first then; with its source.
    Unpacked(String),
    /// The rates of memory and of f32 arithmetic: codes are read as they are, or unpacked first, whichever is faster.
    Guessed,
    /// Memory's rate alone, at which all are unpacked first.
    UnpackedByMemory,
}

impl CostModel {
    /// The costs of a plan's tasks.
    pub fn of_plan(profile: &HardwareProfile, plan: &Plan) -> CostModel {
        let known = profile.compute.weight_read_of(plan.dtype);
        let weights = known.map(|_| {
            let placement = WeightPlacement::of(plan);
            let PerTier { device, host, disk } = placement.bytes();
            (device + host + disk).as_f64()
        });
        CostModel {
            weights,
            ..CostModel::of_layers(profile, &plan.model, plan.dtype)
        }
    }

    /// The costs of a model all of whose weights lie on the device, as they are served with.
    pub fn of_model(
        profile: &HardwareProfile,
        model: &ModelSpec,
        kept: impl Into<Kept>,
    ) -> CostModel {
        let kept = kept.into();
        CostModel {
            weights: Some(kept.weights(model).as_f64()),
            ..CostModel::of_layers(profile, model, kept.dtype)
        }
    }

    /// The costs of layers like a model's, of which caches hold as many as they did when the machine was measured.
    pub fn of_layers(profile: &HardwareProfile, model: &ModelSpec, dtype: Dtype) -> CostModel {
        CostModel {
            by_shape: ByShape::new(&profile.compute, dtype, model.biased_parts()),
            ..CostModel::new(profile, dtype)
        }
    }

    /// The costs of a machine for tensors of one type, of layers without biases, of which caches hold as many as they did when it was measured.
    pub fn new(profile: &HardwareProfile, dtype: Dtype) -> CostModel {
        CostModel {
            gemm: GemmRates::new(&profile.compute.gemm, dtype, GEMM)
                .with_products((&profile.compute.products, profile.kind), dtype),
            by_shape: ByShape::new(&profile.compute, dtype, [false; 2]),
            cpu_gemm: GemmRates::new(&profile.compute.cpu_gemm, dtype, CPU_GEMM),
            f32: Some(GemmRates::new(&profile.compute.gemm, Dtype::F32, GEMM))
                .filter(|known| known.stand_in().is_none()),
            profile: profile.clone(),
            element_bytes: dtype.size_bytes(),
            weight_read: profile.compute.weight_read_of(dtype).cloned(),
            weights: None,
        }
    }

    /// The machine.
    pub fn profile(&self) -> &HardwareProfile {
        &self.profile
    }

    /// The type whose rates of matrix products are taken, where the profile has none of the tensors' own.
    pub fn stand_in(&self) -> Option<Dtype> {
        self.gemm.stand_in()
    }

    /// How long a task takes on a resource with nothing beside it.
    pub fn seconds(&self, on: impl Into<Resource>, op: &Op) -> Seconds {
        let mut all = Seconds::ZERO;
        self.parts(on, op, &mut |part| all += part.seconds);
        all
    }

    /// What a task's time consists of, part by part; [`CostModel::seconds`] is their sum.
    pub fn parts(&self, on: impl Into<Resource>, op: &Op, each: &mut impl FnMut(Part)) {
        let on = on.into();
        self.as_stored(on, op, each);
        // The CPU's products read codes as they are stored and unpack them in registers.
        if on.kind == ResourceKind::Cpu {
            return;
        }
        let all = self.unpacked_apart(op);
        let pack = self.profile.compute.pack.as_ref();
        let packed = pack.map_or(0, |_| all.min(op.newly_packed_elements()));
        if let Some(rate) = pack.filter(|_| packed > 0) {
            let elements = packed as f64;
            let of = (rate, elements, SizeUnit::Elements);
            each(Part::rated("compute.pack", elements, of));
        }
        if all > packed {
            each(self.unpack(all - packed));
        }
    }

    /// Elements whose unpacking or packing no rate of the operation's own has in it.
    fn unpacked_apart(&self, op: &Op) -> u64 {
        match *op {
            Op::Linear {
                stage,
                packed_elements,
                ..
            } if self.unpacks_within(stage) || self.guesses_packed().is_some() => packed_elements,
            Op::Span(_) if self.guesses_packed().is_some() => 0,
            // A head's products are not part of layers.
            Op::Span(ref it) if op.packed_elements() > 0 && self.unpacks_within(Stage::Finish) => {
                match self.unpacks_within(Stage::Head) {
                    true => 0,
                    false => it.head_weights(),
                }
            }
            _ => op.packed_elements(),
        }
    }

    /// The rates of a GPU's f32 arithmetic, where neither its products with weights in 4 bits nor what unpacking takes were measured:
    /// each product's way is then a guess.
    fn guesses_packed(&self) -> Option<&GemmRates> {
        let nobody_knows = self.profile.compute.unpack.is_none() && !self.measures_packed();
        self.f32.as_ref().filter(|_| nobody_knows)
    }

    /// Whether products with weights in 4 bits have rates of their own.
    fn measures_packed(&self) -> bool {
        let measured = self.gemm.measured_packed() || self.gemm.measured_by_shape();
        measured || self.by_shape.is_some()
    }

    /// What times of products with weights in 4 bits rest on.
    pub fn packed_weights(&self) -> PackedWeights {
        match &self.profile.compute.unpack {
            _ if self.measures_packed() => PackedWeights::Measured,
            Some(rate) => PackedWeights::Unpacked(rate.source.clone()),
            None if self.f32.is_some() => PackedWeights::Guessed,
            None => PackedWeights::UnpackedByMemory,
        }
    }

    /// Unpacking of 4-bit groups, and packing where nobody told them apart, once for every GPU batch (FlexGen section 5).
    fn unpack(&self, elements: u64) -> Part {
        let elements = elements as f64;
        match &self.profile.compute.unpack {
            Some(rate) => Part::rated(
                "compute.unpack",
                elements,
                (rate, elements, SizeUnit::Elements),
            ),
            // Its part of a group is read, an element is written.
            None => {
                let packed = GROUP_BYTES as f64 / GROUP_ELEMENTS as f64;
                self.through_device(elements * (packed + self.element_bytes as f64))
            }
        }
    }

    fn through_device(&self, bytes: f64) -> Part {
        let rate = &self.profile.tiers.device_bandwidth;
        Part::streamed("tiers.device_bandwidth", bytes, rate)
    }

    fn launch(&self) -> Part {
        Part::fixed("compute.launch", &self.profile.compute.launch)
    }

    fn cpu_launch(&self) -> Part {
        Part::fixed("compute.cpu_launch", &self.profile.compute.cpu_launch)
    }

    /// Tasks of split linear layers are one kernel each.
    fn launch_of(&self, stage: Stage) -> Part {
        let of_split = self.profile.compute.part_launch.as_ref();
        match of_split.filter(|_| stage.is_of_split()) {
            Some(time) => Part::fixed("compute.part_launch", time),
            None => self.launch(),
        }
    }

    fn as_stored(&self, on: Resource, op: &Op, each: &mut impl FnMut(Part)) {
        match *op {
            Op::Move { bytes, host, .. } => self.transfer(on, bytes, host, each),
            // A part has the heads of many rows, so that a copy engine takes all like one copy.
            Op::MoveParts {
                parts, part, host, ..
            } => self.transfer(on, part * u64::from(parts), host, each),
            // Heads of the cache, read where they lie: what the CPU's attention does.
            Op::Gather { rows, picks, head } => {
                let bytes = (head * (u64::from(rows) * u64::from(picks))).as_f64();
                let rate = &self.profile.compute.cpu_attention;
                each(self.cpu_launch());
                each(Part::rated(
                    "compute.cpu_attention",
                    bytes,
                    (rate, bytes, SizeUnit::Bytes),
                ));
            }
            Op::Embed {
                tokens,
                hidden_size,
                ..
            } => {
                let bytes = u64::from(tokens) * u64::from(hidden_size) * self.element_bytes;
                each(self.launch());
                if let Some(time) = &self.profile.compute.embed {
                    each(Part::fixed("compute.embed", time));
                }
                // Read from the table, written to the activations.
                each(self.through_device(2.0 * bytes as f64));
            }
            Op::Linear { .. } => self.linear(on, op, each),
            Op::Attention { .. } => self.attention(on.kind, op, each),
            Op::Span(ref it) => self.span(it, each),
            Op::Barrier => each(Part::fixed(
                "compute.barrier",
                &self.profile.compute.barrier,
            )),
        }
    }

    fn linear(&self, on: Resource, op: &Op, each: &mut impl FnMut(Part)) {
        let Op::Linear {
            stage,
            m,
            ref gemms,
            reused,
            compressed: packed,
            ..
        } = *op
        else {
            return;
        };
        let on_cpu = on.kind == ResourceKind::Cpu;
        if !on_cpu && self.sums_up(stage, packed) {
            return self.by_shape((stage, m, packed), *gemms, each);
        }
        for gemm in gemms.iter() {
            let product = Product {
                stage: Some(stage),
                m,
                n: gemm.n,
                k: gemm.k,
                reused,
                packed,
            };
            match on_cpu {
                true => self.cpu_gemm(product, each),
                false => self.gemm(product, each),
            }
        }
        each(match on_cpu {
            true => self.cpu_launch(),
            false => self.launch_of(stage),
        });
    }

    /// Whether a part of a layer on the device is the sum of its products and of what is beside them. With weights in 4 bits, where
    /// such products were measured; or else are those of whole ones, and unpacking is counted apart.
    fn sums_up(&self, stage: Stage, packed: bool) -> bool {
        let rated = stage.rated_as().unwrap_or(stage);
        let known = self.by_shape_of(&[rated]);
        let is_known = |known: &ByShape| known.knows_packed() || !self.gemm.measured_packed();
        known.is_some_and(|known| !packed || is_known(known))
    }

    /// Whether times of a part of a layer with weights in 4 bits have the unpacking of these in them.
    fn unpacks_within(&self, stage: Stage) -> bool {
        let by_shape = self.by_shape.as_ref();
        let knows = by_shape.is_some_and(ByShape::knows_packed);
        self.gemm.measured_packed() || knows && self.sums_up(stage, true)
    }

    /// That sum.
    fn by_shape(
        &self,
        (stage, m, packed): (Stage, u32, bool),
        gemms: Gemms,
        each: &mut impl FnMut(Part),
    ) {
        let rated = stage.rated_as().unwrap_or(stage);
        let Some(known) = self.by_shape_of(&[rated]) else {
            return;
        };
        // Attention's end and the MLP are a layer's end together, and each has biases and a residual.
        let share = if rated == stage { 1.0 } else { 0.5 };
        // What the attention gives may be wider than the layer.
        let width = gemms.iter().next().map(|first| match stage {
            Stage::Finish | Stage::Output => first.n,
            _ => first.k,
        });
        let Some(width) = width else { return };
        let shared = known.shared(stage, m, &gemms);
        known.parts(
            (&[rated], m, share),
            (width, packed),
            (&gemms, shared),
            each,
        );
        each(self.launch());
    }

    /// What knows parts of a layer as the sum of their products and of what is beside them.
    fn by_shape_of(&self, stages: &[Stage]) -> Option<&ByShape> {
        self.by_shape.as_ref().filter(|known| known.knows(stages))
    }

    /// How much sooner a copy from pageable memory to the device ends than it would take, where its turn on the link comes this
    /// long after the copy before it that was such a one: the driver puts that much of it into page-locked memory meanwhile, as
    /// far as it has room. Nothing for all else.
    pub fn staged_ahead(&self, op: &Op, since: Seconds) -> Seconds {
        let (h2d, room) = (&self.profile.links.h2d, &self.profile.links.staged_ahead);
        let (Some(room), Some(bytes), Some(host)) = (room, op.pageable_bytes(), op.host_pages())
        else {
            return Seconds::ZERO;
        };
        let (_, pageable) = h2d.rate(host);
        let size = bytes.as_f64();
        let (slow, fast) = (size / pageable.at(size), size / h2d.page_locked.at(size));
        let of_room = room.value.as_f64() / size * slow;
        let staged = since.0.min(of_room).min(slow - fast);
        Seconds(staged.max(0.0))
    }

    fn transfer(&self, on: Resource, bytes: Bytes, host: HostPages, each: &mut impl FnMut(Part)) {
        let (links, tiers) = (&self.profile.links, &self.profile.tiers);
        let size = bytes.as_f64();
        let mut rated = |(fixed, latency): Named<'_, Quantity<Seconds>>,
                         (rate, curve): Named<'_, Curve>| {
            each(Part::fixed(fixed, latency));
            each(Part::rated(rate, size, (curve, size, SizeUnit::Bytes)));
        };
        let mut copy =
            |link: &CopyLink, [latency, locked, pageable, relayed]: [&'static str; 4]| {
                let (of, curve) = link.rate(host);
                let rate = match of {
                    HostPages::Locked => locked,
                    HostPages::Pageable => pageable,
                    HostPages::Relayed => relayed,
                };
                rated((latency, &link.latency), (rate, curve));
            };
        match on.kind {
            ResourceKind::H2d => copy(&links.h2d, H2D),
            ResourceKind::D2h => copy(&links.d2h, D2H),
            ResourceKind::DiskRead => {
                let link = &links.disk_read;
                let latency = ("links.disk_read.latency", &link.latency);
                rated(latency, ("links.disk_read", &link.rate));
            }
            ResourceKind::DiskWrite => {
                let link = &links.disk_write;
                let latency = ("links.disk_write.latency", &link.latency);
                rated(latency, ("links.disk_write", &link.rate));
            }
            ResourceKind::PeerLink => match links.peer_from(on.gpu) {
                Some(peer) => {
                    rated(
                        ("links.peers.latency", &peer.latency),
                        ("links.peers", &peer.rate),
                    );
                }
                None => {
                    copy(&links.d2h, D2H);
                    copy(&links.h2d, H2D);
                }
            },
            ResourceKind::Pin => each(match &links.page_lock {
                Some(curve) => Part::rated("links.page_lock", size, (curve, size, SizeUnit::Bytes)),
                // Read and written.
                None => Part::streamed(HOST_BANDWIDTH, 2.0 * size, &tiers.host_bandwidth),
            }),
            // No lowering moves bytes there; a move would be of the tier's own memory.
            ResourceKind::Gpu => each(self.through_device(size)),
            ResourceKind::Cpu if self.profile.compute.cpu_copy_share.is_some() => {
                let (copied, _) = self.cpu_shares();
                let rate = &self.profile.compute.cpu_attention;
                each(Part::rated(
                    "compute.cpu_attention",
                    size * copied,
                    (rate, size, SizeUnit::Bytes),
                ));
            }
            // Read and written.
            ResourceKind::Cpu | ResourceKind::Sync => {
                each(Part::streamed(
                    HOST_BANDWIDTH,
                    2.0 * size,
                    &tiers.host_bandwidth,
                ));
            }
        }
    }

    /// A product `[m, k] x [n, k]^T` as it was measured, and what weights that no cache holds take beyond that.
    fn gemm(&self, product: Product, each: &mut impl FnMut(Part)) {
        if let Some(f32) = self.guesses_packed().filter(|_| product.packed) {
            return self.packed_gemm(f32, product, each);
        }
        let parts = self.product(product);
        if let Some(wait) = self.wait_for_weights(product, total(&parts)) {
            each(wait);
        }
        parts.into_iter().flatten().for_each(each);
    }

    /// A product with weights in 4 bits as it is guessed: these are read as they are, with f32 arithmetic, or unpacked first, whichever
    /// is faster, as an executor measures it.
    fn packed_gemm(&self, f32: &GemmRates, product: Product, each: &mut impl FnMut(Part)) {
        let whole = self.product(Product {
            packed: false,
            ..product
        });
        let unpack = self.unpack(product.elements() as u64);
        let as_they_are = self.read_in_groups(f32, product);
        let (k, packed) = (product.k, true);
        let is_read =
            product.m <= GPU_ROWS_MOST && Implementation::Gemv.computes(WeightsOnGpu { k, packed });
        match is_read && total(&as_they_are).0 < total(&whole).0 + unpack.seconds.0 {
            true => as_they_are.into_iter().flatten().for_each(each),
            false => whole.into_iter().flatten().chain([unpack]).for_each(each),
        }
    }

    /// The traffic of codes and activations, or the arithmetic on cores that also make numbers of codes.
    fn read_in_groups(&self, f32: &GemmRates, product: Product) -> [Option<Part>; 2] {
        let Product { m, n, k, .. } = product;
        let (rows, n, k) = (f64::from(m), f64::from(n), f64::from(k));
        let activations = rows * (n + k) * self.element_bytes as f64;
        let traffic = self.through_device(n * k * self.stored_bytes(product) + activations);
        let whole = Product {
            packed: false,
            ..product
        };
        let arithmetic = f32.parts(whole);
        let arithmetic = arithmetic.map(|part| part.map(|part| part.times(code_work(m))));
        match traffic.seconds.0 > total(&arithmetic).0 {
            true => [Some(traffic), None],
            false => arithmetic,
        }
    }

    /// At the rate of its own shape, else roofline: arithmetic at the rate for `m`, or the traffic of weights and
    /// activations. A rate that was measured at a shape has its traffic in it.
    fn product(&self, product: Product) -> [Option<Part>; 2] {
        if let Some(measured) = self.gemm.measured(product) {
            return [Some(measured), None];
        }
        let arithmetic = self.gemm.parts(product);
        if self.gemm.measured_by_shape() {
            return arithmetic;
        }
        let Product { m, n, k, .. } = product;
        let (m, n, k) = (f64::from(m), f64::from(n), f64::from(k));
        let elements = n * k + m * (n + k);
        let traffic = self.through_device(elements * self.element_bytes as f64);
        match traffic.seconds.0 > total(&arithmetic).0 {
            true => [Some(traffic), None],
            false => arithmetic,
        }
    }

    /// What reading a product's weights from memory takes beyond what one row took when they lay in a cache. More rows wait
    /// as long, as far as their arithmetic leaves time to read in.
    fn wait_for_weights(&self, product: Product, seconds: Seconds) -> Option<Part> {
        let read = self.read_of_weights(product)?;
        let one_row = total(&self.product(Product { m: 1, ..product }));
        let longer = read.seconds.0 - one_row.0;
        let exposed = (read.seconds.0 / seconds.0).min(1.0);
        (longer > 0.0).then_some(Part {
            seconds: Seconds(longer * exposed),
            ..read
        })
    }

    /// Reading a product's weights, where there are more of them than caches hold.
    fn read_of_weights(&self, product: Product) -> Option<Part> {
        let WeightRead { dtype, rate } = self.weight_read.as_ref()?;
        let weights = self.weights.filter(|_| !product.reused)?;
        let bytes = product.elements() * self.stored_bytes(product);
        let number = of_type(WEIGHT_READ, *dtype);
        let read = Part::rated(number, bytes, (rate, weights, SizeUnit::Bytes));
        let is_large = self.weight_read.as_ref()?.of_all(weights).is_some();
        // Beyond the last point memory is no slower.
        is_large.then_some(Part {
            asked: None,
            ..read
        })
    }

    /// Of an element of a product's weight.
    fn stored_bytes(&self, product: Product) -> f64 {
        self.stored(product.packed)
    }

    /// Of an element of a weight, in 4 bits or not.
    fn stored(&self, packed: bool) -> f64 {
        match packed {
            true => GROUP_BYTES as f64 / GROUP_ELEMENTS as f64,
            false => self.element_bytes as f64,
        }
    }

    /// The same on the CPU: arithmetic at its rate for `m`, or the weights, as stored, and activations through
    /// host memory.
    fn cpu_gemm(&self, product: Product, each: &mut impl FnMut(Part)) {
        let arithmetic = self.cpu_gemm.parts(product);
        let seconds = total(&arithmetic);
        if !self.cpu_gemm.measured_by_shape() {
            let rate = &self.profile.tiers.host_bandwidth;
            let traffic = Part::streamed(HOST_BANDWIDTH, self.product_traffic(product), rate);
            if traffic.seconds.0 > seconds.0 {
                return each(traffic);
            }
        }
        arithmetic.into_iter().flatten().for_each(each);
    }

    /// What of the CPU's attention a copy of the cache is, and what is left where one was made before.
    fn cpu_shares(&self) -> (f64, f64) {
        let share = self.profile.compute.cpu_copy_share.as_ref();
        let copied = share.map_or(0.0, |share| share.value);
        (copied, 1.0 - copied)
    }

    fn attention(&self, on: ResourceKind, op: &Op, each: &mut impl FnMut(Part)) {
        let (
            Op::Attention {
                part,
                group,
                query_len,
                context_len,
                ..
            },
            Some(cache),
            Some(flops),
        ) = (op, op.cache_bytes(), op.attention_flops())
        else {
            return;
        };
        let compute = &self.profile.compute;
        let on_cpu = on == ResourceKind::Cpu;
        let (launch, number, decode, shared) = if on_cpu {
            let decode = (&compute.cpu_attention, &compute.cpu_attention_shared);
            (
                self.cpu_launch(),
                "compute.cpu_attention",
                decode.0,
                decode.1,
            )
        } else {
            let decode = (&compute.attention_decode, &compute.attention_decode_shared);
            (
                self.launch(),
                "compute.attention_decode",
                decode.0,
                decode.1,
            )
        };
        each(launch);
        if *query_len == 1 {
            let bytes = cache.as_f64() / left_of(shared, f64::from(*group));
            let share = match part {
                AttentionPart::Copied => self.cpu_shares().1,
                _ => 1.0,
            };
            let rate = (decode, cache.as_f64(), SizeUnit::Bytes);
            return each(Part::rated(number, bytes * share, rate));
        }
        let (number, prefill) = match &compute.cpu_attention_prefill {
            Some(cpu) if on_cpu => ("compute.cpu_attention_prefill", cpu),
            _ => ("compute.attention_prefill", &compute.attention_prefill),
        };
        let context = f64::from(*context_len);
        each(Part::rated(
            number,
            flops.0,
            (prefill, context, SizeUnit::ContextTokens),
        ));
    }
}

/// What is left of a rate of attention with so many query heads a key head.
fn left_of(shared: &Option<Curve>, group: f64) -> f64 {
    shared.as_ref().map_or(1.0, |left| left.at(group))
}

/// A number and its key in the profile.
type Named<'a, T> = (&'static str, &'a T);

/// Instructions for each multiplication of a row of x with a code: by the executor's kernel (`backend/src/cuda/kernels/packed.cu`),
/// in which a code becomes a number once for up to four rows (2.25), and each row is multiplied by a scale, and by a minimum, once for
/// 16 codes, of four rows for 8 (4). Rows beyond two come in fours, some of which may be idle.
fn code_work(m: u32) -> f64 {
    let at_once = if m > 2 { 4 } else { m.max(1) };
    let computed = m.max(1).next_multiple_of(at_once);
    let codes = if at_once > 2 { 8.0 } else { 16.0 };
    let of_row = 2.25 / f64::from(at_once) + 1.0 + 4.0 / codes;
    of_row * f64::from(computed) / f64::from(m.max(1))
}

/// What parts take together.
fn total(parts: &[Option<Part>]) -> Seconds {
    parts.iter().flatten().map(|part| part.seconds).sum()
}

/// The keys of matrix products and of reading their weights, by type: f32, f16, bf16.
const GEMM: [&str; 3] = ["compute.gemm.f32", "compute.gemm.f16", "compute.gemm.bf16"];
const CPU_GEMM: [&str; 3] = [
    "compute.cpu_gemm.f32",
    "compute.cpu_gemm.f16",
    "compute.cpu_gemm.bf16",
];
const PRODUCTS: [&str; 3] = [
    "compute.products.f32",
    "compute.products.f16",
    "compute.products.bf16",
];
const WEIGHT_READ: [&str; 3] = [
    "compute.weight_read.f32",
    "compute.weight_read.f16",
    "compute.weight_read.bf16",
];

/// The key of a type's number.
const fn of_type([f32, f16, bf16]: [&'static str; 3], dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F32 => f32,
        Dtype::F16 => f16,
        Dtype::Bf16 => bf16,
    }
}

const HOST_BANDWIDTH: &str = "tiers.host_bandwidth";

/// The keys of a link's latency and rates.
const H2D: [&str; 4] = [
    "links.h2d.latency",
    "links.h2d.page_locked",
    "links.h2d.pageable",
    "links.h2d.relayed",
];
const D2H: [&str; 4] = [
    "links.d2h.latency",
    "links.d2h.page_locked",
    "links.d2h.pageable",
    "links.d2h.relayed",
];
