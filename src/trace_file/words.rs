//! Tasks in words.

use plimsoll_core::program::{Cell, Content, Op};

/// The event's name: what is done, and to which square of the schedule (`project L3 b1 p2`).
pub(super) fn task_name(op: &Op, content: Option<Content>, cell: Cell, last_block: u16) -> String {
    let place = match cell.block {
        0 => "embedding".to_owned(),
        block if block == last_block => "head".to_owned(),
        block => format!("L{}", block - 1),
    };
    let (batch, pass) = (cell.batch, cell.pass);
    let what = match op {
        Op::Move { .. } => content.map_or("copy", content_name),
        Op::Embed { .. } => "embed",
        Op::Linear { stage, .. } => stage.name(),
        Op::Attention { .. } => "attention",
        Op::Barrier => "barrier",
    };
    // `embed embedding` and `head head` say one thing twice.
    match (op, content) {
        (Op::Move { .. }, Some(Content::Weights { .. })) => format!("{what} {place} p{pass}"),
        (Op::Embed { .. }, _) => format!("{what} b{batch} p{pass}"),
        (Op::Linear { .. }, _) if what == place => format!("{what} b{batch} p{pass}"),
        _ => format!("{what} {place} b{batch} p{pass}"),
    }
}

fn content_name(content: Content) -> &'static str {
    match content {
        Content::Weights { .. } => "weights",
        Content::Cache { .. } => "cache",
        Content::Hidden { .. } => "activations",
        Content::Mid { .. } => "queries",
        Content::Tokens { .. } => "tokens",
        Content::Prompt { .. } => "prompt",
        Content::Generated { .. } => "generated",
        Content::Workspace => "workspace",
    }
}

/// The operation's shape.
pub(super) fn op_in_words(op: &Op) -> String {
    match op {
        Op::Move {
            bytes, page_locked, ..
        } => {
            let host = if *page_locked {
                "page-locked"
            } else {
                "pageable"
            };
            format!("move {bytes}, host side {host}")
        }
        Op::Embed {
            tokens,
            hidden_size,
            position,
        } => format!("embed {tokens} tokens x {hidden_size}, from position {position}"),
        Op::Linear {
            stage,
            m,
            gemms,
            position,
            reused,
            ..
        } => {
            let products: Vec<String> = gemms
                .iter()
                .map(|gemm| format!("[{m}x{}]x[{}x{}]", gemm.k, gemm.k, gemm.n))
                .collect();
            let products = products.join(" + ");
            let again = if *reused { ", weights as before" } else { "" };
            format!(
                "{}: {products}, from position {position}{again}",
                stage.name()
            )
        }
        Op::Attention {
            rows,
            group,
            head_dim,
            query_len,
            context_len,
            ..
        } => format!(
            "attention of {query_len} tokens over {context_len}: {rows} cache rows, \
             {group} query heads each, head_dim {head_dim}"
        ),
        Op::Barrier => "wait for all resources".to_owned(),
    }
}
