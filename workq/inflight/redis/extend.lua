-- Extend a lease that exists, expired or not. ARGV[4]: the lease in ms. Answers 1, or 0 if there is none.
if not redis.call('ZSCORE', KEYS[2], ARGV[2]) then
  return 0
end
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', in_ms(now - LOST_MS)) -- first, for a full Redis: see beat.lua
redis.call('ZADD', KEYS[2], in_ms(now + ARGV[4]), ARGV[2])
return 1
