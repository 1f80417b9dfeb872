//! The linear layers of a decoder layer, by name.

use std::ops::{Index, IndexMut};

use serde::{Deserialize, Serialize};

use crate::model::TensorRole;

/// A linear layer of a decoder layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Module {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
    /// Attention's output.
    O,
    /// The MLP's gate, where it has one.
    Gate,
    /// The MLP's first.
    Up,
    /// The MLP's last.
    Down,
}

/// Modules whose rows pass through one page-locked buffer: weights in a group are about as large (HeteGen
/// section 4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Group {
    /// Those of attention.
    Attention,
    /// Those of the MLP.
    Mlp,
}

impl Group {
    /// Both.
    pub const ALL: [Group; 2] = [Group::Attention, Group::Mlp];
}

impl Module {
    /// All, in the order in which a layer computes them.
    pub const ALL: [Module; 7] = [
        Module::Q,
        Module::K,
        Module::V,
        Module::O,
        Module::Gate,
        Module::Up,
        Module::Down,
    ];

    /// Its name in plans, traces and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Module::Q => "q",
            Module::K => "k",
            Module::V => "v",
            Module::O => "o",
            Module::Gate => "gate",
            Module::Up => "up",
            Module::Down => "down",
        }
    }

    /// Its weight.
    pub const fn weight(self) -> TensorRole {
        match self {
            Module::Q => TensorRole::QWeight,
            Module::K => TensorRole::KWeight,
            Module::V => TensorRole::VWeight,
            Module::O => TensorRole::OWeight,
            Module::Gate => TensorRole::GateWeight,
            Module::Up => TensorRole::UpWeight,
            Module::Down => TensorRole::DownWeight,
        }
    }

    /// Its bias, where the model has one.
    pub const fn bias(self) -> TensorRole {
        match self {
            Module::Q => TensorRole::QBias,
            Module::K => TensorRole::KBias,
            Module::V => TensorRole::VBias,
            Module::O => TensorRole::OBias,
            Module::Gate => TensorRole::GateBias,
            Module::Up => TensorRole::UpBias,
            Module::Down => TensorRole::DownBias,
        }
    }

    /// The module that has a weight, if one has.
    pub fn of(weight: TensorRole) -> Option<Module> {
        Module::ALL
            .into_iter()
            .find(|module| module.weight() == weight)
    }

    /// Whose buffer its rows pass through.
    pub const fn group(self) -> Group {
        match self {
            Module::Q | Module::K | Module::V | Module::O => Group::Attention,
            Module::Gate | Module::Up | Module::Down => Group::Mlp,
        }
    }
}

/// A value for each module; modules that a model does not have do not matter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // the names are the modules'
pub struct PerModule<T> {
    pub q: T,
    pub k: T,
    pub v: T,
    pub o: T,
    pub gate: T,
    pub up: T,
    pub down: T,
}

impl<T> PerModule<T> {
    /// A value for each.
    pub fn from_fn(mut value: impl FnMut(Module) -> T) -> PerModule<T> {
        PerModule {
            q: value(Module::Q),
            k: value(Module::K),
            v: value(Module::V),
            o: value(Module::O),
            gate: value(Module::Gate),
            up: value(Module::Up),
            down: value(Module::Down),
        }
    }
}

impl<T: Copy> PerModule<T> {
    /// Each with its value.
    pub fn iter(&self) -> impl Iterator<Item = (Module, T)> + '_ {
        Module::ALL.into_iter().map(|module| (module, self[module]))
    }
}

impl<T> Index<Module> for PerModule<T> {
    type Output = T;

    fn index(&self, module: Module) -> &T {
        match module {
            Module::Q => &self.q,
            Module::K => &self.k,
            Module::V => &self.v,
            Module::O => &self.o,
            Module::Gate => &self.gate,
            Module::Up => &self.up,
            Module::Down => &self.down,
        }
    }
}

impl<T> IndexMut<Module> for PerModule<T> {
    fn index_mut(&mut self, module: Module) -> &mut T {
        match module {
            Module::Q => &mut self.q,
            Module::K => &mut self.k,
            Module::V => &mut self.v,
            Module::O => &mut self.o,
            Module::Gate => &mut self.gate,
            Module::Up => &mut self.up,
            Module::Down => &mut self.down,
        }
    }
}
