// The page of a server: a chat, a race of two modes, what steps cost, and the slots.
// What a model wrote reaches the page as text nodes alone; see markdown.js.

import { Answer, make } from './markdown.js'

const ORIGINS = {
  model: 'the model itself',
  suffix: 'the text so far',
  recycling: 'what the model held probable',
  pool: 'n-grams',
  window: 'the lookahead window',
  store: 'earlier texts',
  chain: 'the draft',
}
const RACE_TOKENS = 256
const POLL_MS = 1000
const SHORT_MS = 3000 // races that took less are shown slower
const MOST_STEPS = 400 // shown beside the curve
const at = (id) => document.getElementById(id)

const messages = []
const steps = [] // {rows, ms} of the latest answers
let costs = { mode: 'auto', ms: [] }
let running = null // the AbortController of what runs
let lastRace = null

// Requests

let entering = null
let refused = false // the user has closed the question

// The key that the user gives, asked for once however many requests wait for it.
function askKey() {
  entering ??= new Promise((resolve, reject) => {
    const dialog = at('ask-key')
    const again = sessionStorage.getItem('key')
    at('key-said').textContent = again ? 'That key was refused.' : 'It is kept until this tab is closed.'
    dialog.addEventListener('close', () => {
      entering = null
      const key = at('key').value.trim()
      at('key').value = ''
      refused = !key
      if (!key) return reject(new Error('this server asks for its API key'))
      sessionStorage.setItem('key', key)
      resolve()
    }, { once: true })
    dialog.showModal()
  })
  return entering
}

async function ask(path, options = {}) {
  const key = sessionStorage.getItem('key')
  const headers = { 'Content-Type': 'application/json', ...(key && { Authorization: `Bearer ${key}` }) }
  const reply = await fetch(path, { ...options, headers }).catch((error) => {
    throw error.name === 'AbortError' ? error : new Error('the server does not answer')
  })
  if (reply.ok) return reply
  if (reply.status === 401) {
    // Another request may have got a key in the meantime.
    if (key === sessionStorage.getItem('key')) await askKey()
    return ask(path, options)
  }
  const body = await reply.json().catch(() => ({}))
  throw new Error(body.error?.message ?? `the server answers ${reply.status}`)
}

// The events of a chat's answer, {pieces, tokens, rows, ms}; the last one has the answer's timings.
async function* eventsOf(conversation, options, signal) {
  const body = JSON.stringify({ messages: conversation, stream: true, lacli: { steps: true }, ...options })
  const reply = await ask('v1/chat/completions', { method: 'POST', body, signal })
  let rest = ''
  for await (const text of texts(reply.body)) {
    const lines = (rest + text).split('\n')
    rest = lines.pop()
    for (const line of lines) {
      if (!line.startsWith('data: {')) continue
      const { error, lacli, timings } = JSON.parse(line.slice(6))
      if (error) throw new Error(error.message)
      if (lacli || timings) yield { pieces: [], ...lacli, timings }
    }
  }
}

async function* texts(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader()
  for (let part; !(part = await reader.read()).done;) yield part.value
}

// What a source yields, read to its end however slowly it is taken: a pause holds nothing up on the server.
async function* buffered(source) {
  const ready = []
  let wake = () => {}
  let ended = false
  let failed = null
  const read = async () => {
    try {
      for await (const each of source) {
        ready.push(each)
        wake()
      }
    } catch (error) {
      failed = error
    }
    ended = true
    wake()
  }
  read()
  while (ready.length || !ended) {
    if (ready.length) yield ready.shift()
    else await new Promise((resolve) => { wake = resolve })
  }
  if (failed) throw failed
}

// Pause and step

const gate = {
  paused: false,
  waiting: [],
  pass() {
    return this.paused ? new Promise((resolve) => this.waiting.push(resolve)) : null
  },
  step() {
    this.waiting.shift()?.()
  },
  set(paused) {
    this.paused = paused
    while (!paused && this.waiting.length) this.step()
    at('pause').setAttribute('aria-pressed', paused)
    at('pause').textContent = paused ? 'Go on' : 'Pause'
    at('step').disabled = !paused
  },
}

// Runs something of which there is one at a time, with the buttons that belong to it.
async function alone(work) {
  if (running) return
  running = new AbortController()
  setBusy(true)
  say('')
  try {
    await work(running.signal)
  } catch (error) {
    say(error.name === 'AbortError' ? 'stopped' : error.message)
  } finally {
    running = null
    setBusy(false)
    refresh().catch((error) => say(error.message))
  }
}

function setBusy(busy) {
  for (const id of ['send', 'start-race', 'new-chat', 'again', 'to-chat']) at(id).disabled = busy
  at('stop').disabled = !busy
  at('start-race').disabled ||= costs.mode === 'plain'
  at('again').disabled ||= !lastRace
}

const say = (words) => { at('status').textContent = words }

// Chat

async function chat(prompt, signal) {
  at('race').hidden = true
  at('chat').hidden = false
  if (!messages.length) at('chat').replaceChildren()
  const question = make('article', { className: 'user' }, make('h3', {}, 'You'), make('p', {}, prompt))
  const thoughts = new Answer(make('div', {}))
  const reasoning = make('details', { hidden: true }, make('summary', {}, 'Reasoning'), thoughts.element)
  const answer = new Answer(make('div', { className: 'answer' }))
  const article = make('article', {}, make('h3', {}, 'Model'), reasoning, answer.element)
  article.setAttribute('aria-busy', 'true')
  at('chat').append(question, article)
  const show = onFrames(() => {
    const log = at('chat')
    const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 80
    answer.show()
    thoughts.show()
    reasoning.hidden = !thoughts.text
    if (follows) log.scrollTop = log.scrollHeight
    drawCosts()
  })
  const asked = [...messages, { role: 'user', content: prompt }]
  const counts = {}
  let taken = 0
  try {
    for await (const event of buffered(eventsOf(asked, {}, signal))) {
      await gate.pass()
      if (signal.aborted) throw new DOMException('', 'AbortError')
      for (const piece of event.pieces) (piece.reasoning ? thoughts : answer).add(piece)
      count(event.pieces, counts)
      // The first step reads the prompt's end too, and its time is not told.
      if (event.rows && taken++) note(event)
      if (event.timings) say(summary(event.timings, taken))
      showLegend(counts)
      show()
    }
  } catch (error) {
    if (!answer.text) {
      // It can be asked again.
      question.remove()
      article.remove()
      at('prompt').value ||= prompt
    }
    throw error
  } finally {
    show.now()
    article.removeAttribute('aria-busy')
    if (answer.text) messages.push(asked.at(-1), { role: 'assistant', content: answer.text })
  }
}

function summary(timings, taken) {
  const { predicted_n: tokens, predicted_per_second: rate, draft_n_accepted: came, draft_n: tried } = timings
  const guessed = tried ? `, ${came} of ${tried} guesses came true` : ''
  return `${tokens} tokens in ${taken} steps, ${rate.toFixed(1)} tokens/s${guessed}`
}

// `work` once a frame at most; `now` does it at once.
function onFrames(work) {
  let due = 0
  const run = () => {
    due = 0
    work()
  }
  const later = () => { due ||= requestAnimationFrame(run) }
  later.now = () => {
    cancelAnimationFrame(due)
    run()
  }
  return later
}

// Race

async function race(prompt, signal) {
  at('chat').hidden = true
  at('race').hidden = false
  for (const each of document.querySelectorAll('#race .answer, #race .clock')) each.replaceChildren()
  const runs = []
  let company = false
  for (const mode of ['plain', costs.mode]) {
    at('race-said').textContent = `${mode} answers alone; both are shown afterwards.`
    const slots = await (await ask('slots', { signal })).json()
    company ||= slots.some((slot) => slot.is_processing)
    runs.push(await record(prompt, mode, signal))
  }
  lastRace = { runs, said: verdict(runs, company) }
  showLegend(runs[1].counts)
  drawCosts()
  await replay(lastRace, signal)
}

// An answer with the time of each step, counted from the first one on: {mode, ms, tokens, text, counts, steps}.
async function record(prompt, mode, signal) {
  const run = { mode, ms: 0, tokens: 0, text: '', counts: {}, steps: [] }
  const options = { mode, temperature: 0, max_tokens: RACE_TOKENS }
  for await (const event of eventsOf([{ role: 'user', content: prompt }], options, signal)) {
    run.ms += event.ms ?? 0
    run.tokens += event.tokens ?? 0
    run.text += event.pieces.map((piece) => piece.text).join('')
    if (run.steps.length) note(event)
    run.steps.push({ at: run.ms, tokens: run.tokens, pieces: event.pieces })
    at('race-said').textContent = `${mode} answers alone, ${run.tokens} tokens so far; both are shown afterwards.`
    count(event.pieces, run.counts)
  }
  return run
}

function verdict([plain, other], company) {
  const seconds = (run) => `${run.mode} ${(run.ms / 1000).toFixed(2)} s`
  const same = plain.text === other.text ? 'The texts are the same.' : 'The texts differ: rounding changed a choice.'
  const beside = company ? ' Other answers ran beside them, so the times say little.' : ''
  return `${seconds(plain)}, ${seconds(other)}: ${(plain.ms / other.ms).toFixed(2)} times as fast. ${same}${beside}`
}

async function replay({ runs, said }, signal) {
  const lanes = runs.map((run, place) => {
    const lane = document.querySelectorAll('#race article')[place]
    lane.querySelector('h3').textContent = run.mode
    const element = lane.querySelector('.answer')
    element.replaceChildren()
    return { run, lane, answer: new Answer(element), next: 0 }
  })
  const end = Math.max(...runs.map((run) => run.ms))
  const slower = Math.max(1, Math.round(SHORT_MS / end))
  const recorded = 'Replay of two recorded answers. Each ran alone, one behind the other; the times are those of ' +
    'their steps on the server, without the prompt'
  at('race-said').textContent = slower > 1 ? `${recorded}; shown ${slower} times slower.` : `${recorded}.`
  let before = performance.now()
  for (let elapsed = 0; ; ) {
    for (const each of lanes) showLane(each, elapsed)
    if (elapsed >= end) break
    await (gate.pass() ?? new Promise(requestAnimationFrame))
    if (signal.aborted) throw new DOMException('', 'AbortError')
    const now = performance.now()
    const coming = lanes.flatMap(({ run, next }) => run.steps[next]?.at ?? [])
    elapsed = gate.paused ? Math.min(...coming) : Math.min(elapsed + (now - before) / slower, end)
    before = now
  }
  at('race-said').textContent += ` ${said}`
}

function showLane(each, elapsed) {
  const { run, lane, answer } = each
  const begun = each.next
  while (run.steps[each.next]?.at <= elapsed) run.steps[each.next++].pieces.forEach((piece) => answer.add(piece))
  if (each.next > begun) answer.show()
  const tokens = run.steps[each.next - 1]?.tokens ?? 0
  const seconds = Math.min(elapsed, run.ms) / 1000
  lane.querySelector('progress').value = tokens / Math.max(run.tokens, 1)
  const rate = seconds ? `, ${(tokens / seconds).toFixed(1)} tokens/s` : ''
  lane.querySelector('.clock').textContent = `${seconds.toFixed(2)} s, ${tokens} tokens${rate}`
}

// What the server does

function showLegend(counts) {
  const entries = Object.entries(ORIGINS).filter(([origin]) => origin !== 'chain' || counts.chain)
  at('legend').replaceChildren(...entries.map(([origin, words]) => make('li', {},
    make('span', { className: origin === 'model' ? 'sample' : `sample token ${origin}` }, 'abc'),
    ` ${words}`, make('b', {}, String(counts[origin] ?? 0)))))
}

function count(pieces, counts) {
  for (const { origin } of pieces) counts[origin] = (counts[origin] ?? 0) + 1
}

function note({ rows, ms }) {
  if (!rows) return
  steps.push({ rows, ms })
  if (steps.length > MOST_STEPS) steps.shift()
}

// The curve t(b) over rows, the latest steps as points.
function drawCosts() {
  const { ms } = costs
  if (!ms.length && !steps.length) return
  const rows = Math.max(8, ...steps.map((step) => step.rows))
  const known = ms.slice(0, rows)
  const highest = 1.25 * Math.max(...known, ...(known.length ? [] : steps.map((step) => step.ms)))
  const x = (row) => 36 + (row - 1) * 276 / (rows - 1)
  const y = (time) => 152 - Math.min(time / highest, 1) * 142
  const points = known.map((time, place) => `${x(place + 1)},${y(time)}`).join(' ')
  const last = steps.at(-1)
  at('cost').replaceChildren(
    draw('path', { class: 'axis', d: 'M36,8V152H314' }),
    ...[highest / 2, highest].map((time) => label(32, y(time) + 4, 'end', Number(time.toPrecision(2)))),
    ...[1, Math.round((1 + rows) / 2), rows].map((row) => label(x(row), 166, 'middle', row)),
    label(312, 178, 'end', 'rows of a step'),
    label(2, 178, 'start', 'ms'),
    ...steps.map((step) => draw('circle', { class: 'taken', cx: x(step.rows), cy: y(step.ms), r: 3 })),
    draw('polyline', { class: 'curve', points }),
    ...(last ? [draw('circle', { class: 'last', cx: x(last.rows), cy: y(last.ms), r: 4 })] : []),
  )
  const cost = known.length ? `1 row takes ${ms[0].toFixed(1)} ms, ${known.length} take ${known.at(-1).toFixed(1)} ms. ` : ''
  const chosen = last ? `The last of ${steps.length} steps had ${last.rows} ${last.rows === 1 ? 'row' : 'rows'} and took ${last.ms.toFixed(1)} ms.` : ''
  at('cost-said').textContent = cost + chosen
}

const label = (x, y, anchor, words) => {
  const text = draw('text', { x, y, 'text-anchor': anchor })
  text.textContent = words
  return text
}

function draw(name, attributes) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name)
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value)
  return element
}

function showSlots(slots) {
  at('slots').replaceChildren(...slots.map(({ id, is_processing: busy, n_prompt_tokens, n_decoded, timings }) => {
    const cells = busy ? [n_prompt_tokens, n_decoded, timings.predicted_per_second.toFixed(1)] : ['free', '', '']
    return make('tr', {}, make('th', { scope: 'row' }, String(id)), ...cells.map((cell) => make('td', {}, String(cell))))
  }))
}

async function refresh() {
  costs = await (await ask('lacli/steps')).json()
  showSlots(await (await ask('slots')).json())
  drawCosts()
}

async function poll() {
  try {
    if (!document.hidden && !refused) await refresh()
    if (at('model').dataset.gone && !refused) await begin()
  } catch (error) {
    at('model').textContent = error.message
    at('model').dataset.gone = 'yes'
  }
  setTimeout(poll, POLL_MS)
}

async function begin() {
  const { data } = await (await ask('v1/models')).json()
  at('model').textContent = data[0].id
  delete at('model').dataset.gone
  setBusy(Boolean(running))
}

// Buttons and keys

function taken() {
  const prompt = at('prompt').value.trim()
  if (!prompt) at('prompt').focus()
  return prompt
}

at('ask').addEventListener('submit', (event) => {
  event.preventDefault()
  const prompt = taken()
  if (!prompt || running) return
  at('prompt').value = ''
  alone((signal) => chat(prompt, signal))
})
at('prompt').addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return
  event.preventDefault()
  at('ask').requestSubmit()
})
at('start-race').addEventListener('click', () => {
  const prompt = taken()
  if (prompt) alone((signal) => race(prompt, signal))
})
at('to-chat').addEventListener('click', () => {
  at('race').hidden = true
  at('chat').hidden = false
})
at('again').addEventListener('click', () => alone((signal) => replay(lastRace, signal)))
at('pause').addEventListener('click', () => gate.set(!gate.paused))
at('step').addEventListener('click', () => gate.step())
at('stop').addEventListener('click', () => {
  running?.abort()
  gate.set(false)
})
at('colours').addEventListener('change', (event) => document.body.classList.toggle('plain', !event.target.checked))
at('new-chat').addEventListener('click', () => {
  messages.length = 0
  at('race').hidden = true
  at('chat').hidden = false
  at('chat').replaceChildren()
  showLegend({})
  say('')
  at('prompt').focus()
})

at('model').dataset.gone = 'yes'
showLegend({})
poll()
