-- Comes before each of the other scripts: where things are, what an entry says, who is alive, how entries change hands.
--
-- KEYS[1]  epoch   string  when this store began, in ms of Redis TIME
-- KEYS[2]  leases  zset    worker -> deadline in ms
-- KEYS[3]  lost    zset    reaped worker -> when, in ms
-- ARGV[1]  the prefix of every key, with the hash tag: {namespace}:
-- ARGV[2]  the worker or queue that the call is about
-- ARGV[3], ARGV[4]  as each script says
--
-- prefix .. inflight:<queue>  hash  id -> "attempt|since in ms|worker"; attempt is empty until the task is claimed
-- prefix .. held:<worker>     set   "queue|id": the same entries, by holder
-- prefix .. aside             zset  name of a key that was moved aside (see aside.lua) -> when, in ms
-- Both names are put together here. The hash tag keeps them in the slot of the declared keys.
--
-- A script that has not written anything yet is refused by a full Redis (maxmemory) at its first write that needs
-- memory; one that has written is let through to its end. So each change is made whole or not at all.

local CHUNK = 1000 -- arguments of one command: Lua can unpack some 8,000 values at once
local LOST_MS = 7 * 24 * 3600 * 1000
local LOST_MAX = 10000

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local prefix = ARGV[1]

local function in_ms(number)
  return string.format('%.0f', number)
end

local function hash_of(queue)
  return prefix .. 'inflight:' .. queue
end

local function index_of(worker)
  return prefix .. 'held:' .. worker
end

-- Of nobody, if a stranger wrote it.
local function holder_of(value)
  return string.match(value, '^%d*|%d+|(.*)$')
end

-- When this store began: now, if nobody has noticed before that it is empty, or if the clock has been set back since.
local function began()
  local at = tonumber(redis.call('GET', KEYS[1]) or nil)
  if not at or at > now then
    redis.call('SET', KEYS[1], in_ms(now))
    at = now
  end
  return at
end

local live = {}
local function is_live(worker)
  if live[worker] == nil then
    local deadline = redis.call('ZSCORE', KEYS[2], worker)
    live[worker] = deadline and tonumber(deadline) > now or false
  end
  return live[worker]
end

local function in_chunks(list, call)
  for first = 1, #list, CHUNK do
    call(first, math.min(first + CHUNK - 1, #list))
  end
end

-- The values of some ids; false where there is none.
local function values_of(hash, ids)
  local values = {}
  in_chunks(ids, function(first, last)
    for i, value in ipairs(redis.call('HMGET', hash, unpack(ids, first, last))) do
      values[first + i - 1] = value
    end
  end)
  return values
end

-- Read first what groups [[queue, [id, ...], [attempt, ...]], ...] would change, then write it: a wrong type found on the
-- way leaves everything as it was. With `exact`, an entry that is the worker's own gets the attempt that is given, else
-- only one that is known. Answers the ids that others keep, and how many entries were not the worker's own before.
local function take(worker, groups, exact)
  local kept, gained, changes, freed = {}, 0, {}, {}
  local suffix = '|' .. in_ms(now) .. '|' .. worker
  for g, group in ipairs(groups) do
    local queue, ids, attempts = group[1], group[2], group[3]
    local fields, members = {}, {}
    for i, value in ipairs(values_of(hash_of(queue), ids)) do
      local id, attempt = ids[i], attempts[i] or ''
      local holder = value and holder_of(value)
      if holder and holder ~= worker and is_live(holder) then
        kept[#kept + 1] = id
      else
        members[#members + 1] = queue .. '|' .. id
        if holder == worker then
          local known, rest = string.match(value, '^(%d*)(.*)$')
          if known ~= attempt and (exact or attempt ~= '') then
            fields[#fields + 1] = id
            fields[#fields + 1] = attempt .. rest
          end
        else
          gained = gained + 1
          fields[#fields + 1] = id
          fields[#fields + 1] = attempt .. suffix
          if holder then
            freed[#freed + 1] = { index_of(holder), queue .. '|' .. id }
          end
        end
      end
    end
    changes[g] = { hash_of(queue), fields, members }
  end
  for _, change in ipairs(changes) do
    local hash, fields, members = unpack(change)
    in_chunks(fields, function(first, last) redis.call('HSET', hash, unpack(fields, first, last)) end)
    in_chunks(members, function(first, last) redis.call('SADD', index_of(worker), unpack(members, first, last)) end)
  end
  for _, member in ipairs(freed) do
    redis.call('SREM', member[1], member[2])
  end
  return kept, gained
end

-- Drop those of the ids of one queue that the worker holds; answers how many.
local function drop(worker, queue, ids)
  local own, members = {}, {}
  for i, value in ipairs(values_of(hash_of(queue), ids)) do
    members[i] = queue .. '|' .. ids[i]
    if value and holder_of(value) == worker then
      own[#own + 1] = ids[i]
    end
  end
  in_chunks(own, function(first, last) redis.call('HDEL', hash_of(queue), unpack(own, first, last)) end)
  in_chunks(members, function(first, last) redis.call('SREM', index_of(worker), unpack(members, first, last)) end)
  return #own
end

-- What the index says of one worker: {queue = {id, ...}, ...}
local function indexed(worker)
  local queues = {}
  for _, member in ipairs(redis.call('SMEMBERS', index_of(worker))) do
    local queue, id = string.match(member, '^([^|]*)|(.*)$')
    if queue then
      queues[queue] = queues[queue] or {}
      table.insert(queues[queue], id)
    end
  end
  return queues
end
