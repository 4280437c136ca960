// The page of a server: one chat, whose guessed tokens are coloured and whose tokens a step are shown as they come.
// What a model wrote reaches the page as text nodes alone.

const ORIGINS = {
  suffix: 'the text so far',
  pool: 'n-grams',
  window: 'the lookahead window',
  chain: 'the draft',
}
const at = (id) => document.getElementById(id)
const say = (words) => { at('status').textContent = words }

const messages = []
let running = null // the AbortController of the answer that comes

function make(name, properties, ...children) {
  const element = Object.assign(document.createElement(name), properties)
  element.append(...children)
  return element
}

// Resolves when the user has given a key.
function askKey() {
  return new Promise((resolve, reject) => {
    at('key-said').textContent = sessionStorage.getItem('key') ? 'That key was refused.' : 'It is kept until this tab is closed.'
    at('ask-key').addEventListener('close', () => {
      const key = at('key').value.trim()
      at('key').value = ''
      if (!key) return reject(new Error('this server asks for its API key'))
      sessionStorage.setItem('key', key)
      resolve()
    }, { once: true })
    at('ask-key').showModal()
  })
}

async function ask(path, options = {}) {
  const key = sessionStorage.getItem('key')
  const headers = { 'Content-Type': 'application/json', ...(key && { Authorization: `Bearer ${key}` }) }
  const reply = await fetch(path, { ...options, headers }).catch((error) => {
    throw error.name === 'AbortError' ? error : new Error('the server does not answer')
  })
  if (reply.ok) return reply
  if (reply.status === 401) {
    await askKey()
    return ask(path, options)
  }
  const body = await reply.json().catch(() => ({}))
  throw new Error(body.error?.message ?? `the server answers ${reply.status}`)
}

// The steps of an answer, {pieces, tokens}; the last one has the answer's timings.
async function* stepsOf(conversation, signal) {
  const body = JSON.stringify({ messages: conversation, stream: true, lacli: { steps: true } })
  const reply = await ask('v1/chat/completions', { method: 'POST', body, signal })
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ''
  for (let part; !(part = await reader.read()).done;) {
    const lines = (rest + part.value).split('\n')
    rest = lines.pop()
    for (const line of lines.filter((each) => each.startsWith('data: {'))) {
      const { error, lacli, timings } = JSON.parse(line.slice(6))
      if (error) throw new Error(error.message)
      if (lacli || timings) yield { pieces: [], tokens: 0, ...lacli, timings }
    }
  }
}

async function chat(prompt, signal) {
  if (!messages.length) at('chat').replaceChildren()
  const question = make('article', { className: 'user' }, make('h3', {}, 'You'), make('p', {}, prompt))
  const thoughts = make('div', {})
  const reasoning = make('details', { hidden: true }, make('summary', {}, 'Reasoning'), thoughts)
  const answer = make('div', { className: 'answer' })
  const article = make('article', {}, make('h3', {}, 'Model'), reasoning, answer)
  at('chat').append(question, article)
  const asked = [...messages, { role: 'user', content: prompt }]
  const counts = {}
  let text = ''
  let tokens = 0
  let steps = 0
  try {
    for await (const step of stepsOf(asked, signal)) {
      const log = at('chat')
      const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 80
      for (const piece of step.pieces) {
        const guessed = piece.origin !== 'model'
        if (!piece.reasoning) text += piece.text
        if (guessed) counts[piece.origin] = (counts[piece.origin] ?? 0) + 1
        const shown = guessed ? make('span', { className: `token ${piece.origin}` }, piece.text) : piece.text
        ;(piece.reasoning ? thoughts : answer).append(shown)
      }
      reasoning.hidden = !thoughts.textContent
      tokens += step.tokens
      steps += step.tokens > 0
      say(told(tokens, steps, step.timings))
      showLegend(counts)
      if (follows) log.scrollTop = log.scrollHeight
    }
  } catch (error) {
    if (!text) {
      // It can be asked again.
      question.remove()
      article.remove()
      at('prompt').value ||= prompt
    }
    throw error
  } finally {
    if (text) messages.push(asked.at(-1), { role: 'assistant', content: text })
  }
}

function told(tokens, steps, timings) {
  const rate = timings ? `, ${timings.predicted_per_second.toFixed(1)} tokens/s` : ''
  return steps ? `${tokens} tokens in ${steps} steps, ${(tokens / steps).toFixed(2)} a step${rate}` : ''
}

function showLegend(counts) {
  const rows = Object.entries(counts).map(([origin, count]) =>
    make('li', {}, make('span', { className: `token ${origin}` }, ORIGINS[origin] ?? origin), ` ${count}`))
  at('legend').replaceChildren(...rows)
}

async function send() {
  const prompt = at('prompt').value.trim()
  if (!prompt || running) return
  running = new AbortController()
  at('prompt').value = ''
  for (const id of ['send', 'new-chat']) at(id).disabled = true
  at('stop').disabled = false
  try {
    await chat(prompt, running.signal)
  } catch (error) {
    say(error.name === 'AbortError' ? 'stopped' : error.message)
  } finally {
    running = null
    for (const id of ['send', 'new-chat']) at(id).disabled = false
    at('stop').disabled = true
  }
}

at('ask').addEventListener('submit', (event) => {
  event.preventDefault()
  send()
})
at('prompt').addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return
  event.preventDefault()
  send()
})
at('stop').addEventListener('click', () => running?.abort())
at('new-chat').addEventListener('click', () => {
  messages.length = 0
  at('chat').replaceChildren()
  showLegend({})
  say('')
})
ask('v1/models').then((reply) => reply.json()).then(({ data }) => { at('model').textContent = data[0].id })
  .catch((error) => say(error.message))
