// Markdown as blocks and spans that name places in the text, so that each character keeps where it came from.
// Paragraphs, lists, code blocks, inline code and bold; everything else is text, HTML and links too.

const FENCE = /^ {0,3}```/
const ITEM = /^ {0,3}(?:[-*+]|(\d{1,9})[.)])[ \t]+/
const SPAN = /`([^`\n]+)`|\*\*(?=\S)([\s\S]*?\S)\*\*/g

// The blocks of a text: {kind: 'paragraph' | 'code' | 'list', begin, end}, a list with `ordered`, `first`, `items`.
// Only the last block changes when text is added.
export function blocksOf(text) {
  const found = []
  let open = null
  for (const line of linesOf(text)) {
    const { begin, end } = line
    const words = text.slice(begin, end)
    if (open?.kind === 'code') {
      if (FENCE.test(words)) open = null
      else open.end = end
      continue
    }
    const item = ITEM.exec(words)
    if (FENCE.test(words)) {
      const code = Math.min(end + 1, text.length)
      found.push(open = { kind: 'code', begin: code, end: code })
    } else if (!words.trim()) {
      open = null
    } else if (item) {
      const ordered = item[1] !== undefined
      const place = { begin: begin + item[0].length, end }
      if (open?.kind === 'list' && open.ordered === ordered) {
        open.items.push(place)
        open.end = end
      } else {
        found.push(open = { kind: 'list', begin, end, ordered, first: Number(item[1] ?? 1), items: [place] })
      }
    } else if (open) {
      open.end = end
      if (open.kind === 'list') open.items.at(-1).end = end
    } else {
      found.push(open = { kind: 'paragraph', begin, end })
    }
  }
  return found
}

// The spans from `begin` to `end` of a text: {kind: 'text' | 'code' | 'bold', begin, end}.
export function spansOf(text, begin, end) {
  const found = []
  let at = begin
  const plain = (to) => { if (to > at) found.push({ kind: 'text', begin: at, end: to }) }
  for (const match of text.slice(begin, end).matchAll(SPAN)) {
    const [whole, code] = match
    const start = begin + match.index
    plain(start)
    const mark = code === undefined ? 2 : 1
    found.push({ kind: mark === 2 ? 'bold' : 'code', begin: start + mark, end: start + whole.length - mark })
    at = start + whole.length
  }
  plain(end)
  return found
}

function* linesOf(text) {
  for (let begin = 0; begin < text.length;) {
    const newline = text.indexOf('\n', begin)
    const end = newline < 0 ? text.length : newline
    yield { begin, end }
    begin = end + 1
  }
}

// An answer in an element of the page: it grows by pieces, {text, origin}, and only its last block is made anew.
export class Answer {
  constructor(element) {
    this.element = element
    this.text = ''
    this.ends = [] // of the runs of one origin, with their origins
  }

  add({ text, origin }) {
    this.text += text
    const last = this.ends.at(-1)
    // Two guessed tokens beside each other stay two.
    if (last && origin === 'model' && last.origin === 'model') last.end = this.text.length
    else if (text) this.ends.push({ end: this.text.length, origin })
  }

  show() {
    const { element } = this
    const blocks = blocksOf(this.text)
    const kept = Math.max(Math.min(element.children.length, blocks.length) - 1, 0)
    while (element.children.length > kept) element.lastChild.remove()
    for (const block of blocks.slice(kept)) element.append(this.#block(block))
  }

  #block(block) {
    if (block.kind === 'code') return make('pre', {}, make('code', {}, ...this.#runs(block)))
    if (block.kind === 'paragraph') return make('p', {}, ...this.#spans(block))
    const items = block.items.map((item) => make('li', {}, ...this.#spans(item)))
    return block.ordered ? make('ol', { start: block.first }, ...items) : make('ul', {}, ...items)
  }

  #spans({ begin, end }) {
    return spansOf(this.text, begin, end).flatMap((span) => {
      if (span.kind === 'text') return this.#runs(span)
      return [make(span.kind === 'bold' ? 'strong' : 'code', {}, ...this.#runs(span))]
    })
  }

  // The characters of a place as text, those that were guessed in a mark of their origin.
  #runs({ begin, end }) {
    const found = []
    let place = firstBehind(this.ends, begin)
    for (let at = begin; at < end; place++) {
      const run = this.ends[place]
      const to = Math.min(run.end, end)
      const words = this.text.slice(at, to)
      found.push(run.origin === 'model' ? words : make('span', { className: `token ${run.origin}` }, words))
      at = to
    }
    return found
  }
}

// The first run that ends behind a place; runs are many, and blocks are made anew at every step.
function firstBehind(ends, place) {
  let low = 0
  let high = ends.length
  while (low < high) {
    const middle = (low + high) >> 1
    if (ends[middle].end > place) high = middle
    else low = middle + 1
  }
  return low
}

// An element with properties and children; texts become text nodes.
export function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties)
  element.append(...children)
  return element
}
