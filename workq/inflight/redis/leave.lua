-- End an incarnation: its lease and its holds. ARGV[3]: "forget" to remember it as reaped. Answers the holds dropped.
redis.call('ZREM', KEYS[2], ARGV[2])
local dropped = 0
for queue, ids in pairs(indexed(ARGV[2])) do
  dropped = dropped + drop(ARGV[2], queue, ids)
end
redis.call('DEL', index_of(ARGV[2]))
if ARGV[3] == 'forget' then
  began()
  redis.call('ZADD', KEYS[3], in_ms(now), ARGV[2])
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', in_ms(now - LOST_MS))
  redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -LOST_MAX - 1)
end
return dropped
