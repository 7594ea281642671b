-- Find keys of ours that are of another type, by somebody else's hand, and move them aside: renamed, never deleted.
-- ARGV[2]: the worker or queue that the call was about. ARGV[3]: the queues that it named, as JSON.
-- ARGV[4]: "move", or "look" to change nothing. Answers their names.
--
-- What was moved aside is as good as wiped, so the epoch begins anew: nobody is reaped before the workers have written
-- again what they hold. The names are kept in prefix .. aside, a zset: new name -> when, in ms.
local wrong, seen = {}, {}
local function is_fine(key, kind)
  if seen[key] == nil then
    local found = redis.call('TYPE', key).ok
    seen[key] = found == kind
    if found ~= kind and found ~= 'none' then
      wrong[#wrong + 1] = key
    end
  end
  return seen[key]
end

is_fine(KEYS[1], 'string')
is_fine(KEYS[3], 'zset')
is_fine(prefix .. 'aside', 'zset')
local workers = is_fine(KEYS[2], 'zset') and redis.call('ZRANGE', KEYS[2], 0, -1) or {}
workers[#workers + 1] = ARGV[2]
local queues = { [ARGV[2]] = true }
for _, queue in ipairs(cjson.decode(ARGV[3])) do
  queues[queue] = true
end
for _, worker in ipairs(workers) do
  if is_fine(index_of(worker), 'set') then
    for queue in pairs(indexed(worker)) do
      queues[queue] = true
    end
  end
end
for queue in pairs(queues) do
  if is_fine(hash_of(queue), 'hash') then
    for _, value in ipairs(redis.call('HVALS', hash_of(queue))) do
      local holder = holder_of(value)
      if holder then
        is_fine(index_of(holder), 'set')
      end
    end
  end
end
if ARGV[4] == 'move' and #wrong > 0 then
  local moved = {}
  for i, key in ipairs(wrong) do
    moved[i] = key .. ':aside:' .. in_ms(now)
    redis.call('RENAME', key, moved[i]) -- first, for a full Redis: see entry.lua
  end
  redis.call('SET', KEYS[1], in_ms(now))
  for _, name in ipairs(moved) do
    redis.call('ZADD', prefix .. 'aside', in_ms(now), name)
  end
  redis.call('ZREMRANGEBYRANK', prefix .. 'aside', 0, -LOST_MAX - 1)
  return moved
end
return wrong
