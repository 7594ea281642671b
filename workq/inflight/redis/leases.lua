-- Answers the time in ms, when this store began in ms, then worker and deadline in ms of each lease.
-- ARGV[3] 'age': of the leases nothing.
-- A wipe is noticed here too, so that whoever sees no leases also sees a young epoch.
local answer = { in_ms(now), in_ms(began()) }
if ARGV[3] == 'age' then
  return answer
end
for i, item in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')) do
  answer[i + 2] = item
end
return answer
