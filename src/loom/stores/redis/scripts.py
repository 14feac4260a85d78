"""The Lua that runs inside Redis: each script is one atomic step.

No script ever holds a value: ids and texts come as arguments and are only compared and stored.
"""

COMMIT = """
-- KEYS: version, users, forgotten, then all keys of the user. ARGV: the user's digest and name, the time, how the
-- documents of vectors start, then checks, ids that change, ids that go, commands. Returns 0, and does nothing, if a
-- field is not what the caller read.
local _, users, forgotten, meta, changed, records, keys, vectors, jobs, _, dead, ends = unpack(KEYS)
local digest, now, at = ARGV[1], ARGV[3], 4
local function take()
  at = at + 1
  return ARGV[at]
end
for _ = 1, tonumber(take()) do
  local key, field, expected = take(), take(), take()
  local held = redis.call('HGET', key, field)
  if (held and '=' .. held or '-') ~= expected then return 0 end
end
local version = redis.call('INCR', KEYS[1])
local over = redis.call('ZRANGEBYSCORE', ends, '-inf', now)
for _, id in ipairs(over) do
  for _, key in ipairs({records, keys, vectors}) do redis.call('HDEL', key, id) end
  for _, key in ipairs({changed, ends}) do redis.call('ZREM', key, id) end
  redis.call('DEL', ARGV[4] .. id)
end
if redis.call('EXISTS', meta) == 0 then redis.call('HSET', meta, 'deleted', version) end
redis.call('HSET', meta, 'version', version)
for _ = 1, tonumber(take()) do redis.call('ZADD', changed, version, take()) end
local removed = tonumber(take())
for _ = 1, removed do redis.call('ZREM', changed, take()) end
if removed + #over > 0 then redis.call('HSET', meta, 'deleted', version) end
while at < #ARGV do
  local command = {}
  for place = 1, tonumber(take()) do command[place] = take() end
  redis.call(unpack(command))
end
if redis.call('EXISTS', changed, jobs, dead) == 0 then
  redis.call('DEL', meta)
  redis.call('HDEL', users, digest)
  redis.call('HINCRBY', forgotten, 'users', 1)
  return 1
end
redis.call('HSET', users, digest, ARGV[2])
local last = redis.call('ZREVRANGE', ends, 0, 0, 'WITHSCORES')[2]
local all_end = last and redis.call('ZCARD', ends) == redis.call('HLEN', records)
if all_end and redis.call('EXISTS', jobs, dead) == 0 then
  local left = string.format('%.0f', math.max(0, math.ceil((last - now) / 1000)))
  for place = 4, #KEYS do redis.call('PEXPIRE', KEYS[place], left) end
  -- A server before Redis 7.4 cannot end one field; there the user's name stays until they are forgotten.
  redis.pcall('HPEXPIRE', users, left, 'FIELDS', 1, digest)
elseif redis.call('PTTL', meta) ~= -1 then
  for place = 4, #KEYS do redis.call('PERSIST', KEYS[place]) end
end
return 1
"""

PAGE = """
-- KEYS: embedder, meta, changed, records, keys, vectors. ARGV: since which change, since which removal, how many, and
-- whether vectors are wanted.
-- Returns the server's run, the embedder, version, deleted, rows, whether more follow, and the ids that are left.
local info = redis.pcall('INFO', 'server')
local run = type(info) == 'string' and string.match(info, 'run_id:(%x+)') or ''
local meta = redis.call('HMGET', KEYS[2], 'version', 'deleted')
local since, limit = '(' .. ARGV[1], tonumber(ARGV[3])
local found = redis.call('ZRANGEBYSCORE', KEYS[3], since, '+inf', 'WITHSCORES', 'LIMIT', 0, limit)
local more = #found == 2 * limit
if more then
  -- What one change wrote stays on one page, so that the next begins behind a whole change.
  found = redis.call('ZRANGEBYSCORE', KEYS[3], since, found[#found], 'WITHSCORES')
end
local rows = {}
for place = 1, #found, 2 do
  local id = found[place]
  rows[#rows + 1] = {
    id, redis.call('HGET', KEYS[4], id), redis.call('HGET', KEYS[5], id),
    ARGV[4] == '1' and redis.call('HGET', KEYS[6], id),
  }
end
local left = false
if not more and meta[2] and meta[2] ~= ARGV[2] then left = redis.call('ZRANGE', KEYS[3], 0, -1) end
return {run, redis.call('HGET', KEYS[1], 'bound'), meta[1], meta[2], rows, more and found[#found] or false, left}
"""

FORGET = """
-- KEYS: users, due, held, forgotten, then all keys of the user: meta, changed, records, keys, vectors, jobs, job_keys,
-- dead, ends. ARGV: the user's digest, and how the documents of vectors start ('' for none). Returns how many
-- episodes, facts, blocks, jobs and dead letters there were.
local count = {episode = 0, fact = 0, block = 0}
for _, record in ipairs(redis.call('HVALS', KEYS[7])) do
  local kind = string.match(record, '^{"kind":"(%l+)"')
  count[kind] = count[kind] + 1
end
local jobs = redis.call('HKEYS', KEYS[10])
for _, id in ipairs(jobs) do
  redis.call('ZREM', KEYS[2], id .. '\\0' .. ARGV[1])
  redis.call('ZREM', KEYS[3], id .. '\\0' .. ARGV[1])
end
local dead = redis.call('LLEN', KEYS[12])
if ARGV[2] ~= '' then
  for _, id in ipairs(redis.call('HKEYS', KEYS[9])) do redis.call('DEL', ARGV[2] .. id) end
end
for place = 5, 13 do redis.call('DEL', KEYS[place]) end
redis.call('HINCRBY', KEYS[4], 'users', 1)
redis.call('HDEL', KEYS[1], ARGV[1])
return {count.episode, count.fact, count.block, #jobs, dead}
"""

REBIND = """
-- KEYS: embedder, users. ARGV: what was bound ('-' for nothing), what is bound now, the start of the keys of vectors,
-- and that of their documents ('' for none).
local held = redis.call('HGET', KEYS[1], 'bound')
if (held and '=' .. held or '-') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'bound', ARGV[2])
if held then
  for _, digest in ipairs(redis.call('HKEYS', KEYS[2])) do
    local ids = ARGV[4] ~= '' and redis.call('HKEYS', ARGV[3] .. digest) or {}
    for _, id in ipairs(ids) do redis.call('DEL', ARGV[4] .. digest .. ':' .. id) end
    redis.call('DEL', ARGV[3] .. digest)
  end
end
return 1
"""

NEAR = """
-- KEYS: vectors. ARGV: how the documents of the user start, the user's digest, then id, vector and document of each as
-- they were read. Writes or removes the documents of those that are still so.
for place = 3, #ARGV, 3 do
  local id, held = ARGV[place], redis.call('HGET', KEYS[1], ARGV[place])
  if not held then
    redis.call('DEL', ARGV[1] .. id)
  elseif held == ARGV[place + 1] and redis.call('HGET', ARGV[1] .. id, 'v') ~= ARGV[place + 2] then
    redis.call('HSET', ARGV[1] .. id, 'u', ARGV[2], 'v', ARGV[place + 2])
  end
end
return 1
"""
