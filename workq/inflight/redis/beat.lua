-- Extend the lease of one incarnation and write what it holds. ARGV[3]: the groups, as JSON. ARGV[4]: the lease in ms.
-- Answers false if it was reaped; otherwise how many entries were written again.
if redis.call('ZSCORE', KEYS[3], ARGV[2]) then
  return false
end
local groups = cjson.decode(ARGV[3])
-- This write needs no memory and comes first on purpose: then a full Redis does not refuse the rest. A store that takes
-- no more holds must not end the leases of those who work.
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', in_ms(now - LOST_MS))
began()
redis.call('ZADD', KEYS[2], in_ms(now + ARGV[4]), ARGV[2])
local _, gained = take(ARGV[2], groups, true)
return gained
