//! Tasks in words.

use plimsoll_core::program::{AttentionPart, Cell, Content, HostPages, Op, Span};

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
        Op::MoveParts { .. } => content.map_or("copy", part_name),
        Op::Gather { .. } => "gather values",
        Op::Embed { .. } => "embed",
        Op::Linear { stage, .. } => stage.name(),
        Op::Attention { part, .. } => match part {
            AttentionPart::Whole | AttentionPart::Copied => "attention",
            AttentionPart::Scores => "scores",
            AttentionPart::Values => "weigh values",
        },
        Op::Span(_) => "iteration",
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

/// Parts of the cache are its keys; of what the CPU has collected, values.
fn part_name(content: Content) -> &'static str {
    match content {
        Content::Cache { .. } => "keys",
        Content::Mid { .. } => "values",
        other => content_name(other),
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
        Content::Input { .. } => "inputs",
        Content::Outputs { .. } => "outputs",
        Content::Rows { .. } => "rows",
        Content::Workspace => "workspace",
    }
}

fn host_side(host: HostPages) -> &'static str {
    match host {
        HostPages::Locked => "page-locked",
        HostPages::Pageable | HostPages::Relayed => "pageable",
    }
}

/// An iteration's shape.
fn span_in_words(it: &Span) -> String {
    format!(
        "{} layers over {} tokens of {} sequences, {} of prompts; {} tokens of cache read",
        it.layers, it.tokens, it.sequences, it.prompt_tokens, it.context_tokens
    )
}

/// The operation's shape.
pub(super) fn op_in_words(op: &Op) -> String {
    match op {
        Op::Move { bytes, host, .. } => {
            let host = host_side(*host);
            format!("move {bytes}, host side {host}")
        }
        Op::MoveParts {
            parts, part, host, ..
        } => {
            let host = host_side(*host);
            format!("move {parts} parts of {part}, host side {host}")
        }
        Op::Gather { rows, picks, head } => {
            format!("collect {picks} values of {head} for each of {rows} cache rows")
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
            seen_len,
            value_len,
            ..
        } => {
            let unless = |len, all, words: &str| match len == all {
                true => String::new(),
                false => format!(", {words} {len}"),
            };
            let window = unless(seen_len, context_len, "a window of");
            let sparse = unless(value_len, seen_len, "values of");
            format!(
                "attention of {query_len} tokens over {context_len}{window}{sparse}: {rows} cache rows, \
                 {group} query heads each, head_dim {head_dim}"
            )
        }
        Op::Span(it) => span_in_words(it),
        Op::Barrier => "wait for all resources".to_owned(),
    }
}
