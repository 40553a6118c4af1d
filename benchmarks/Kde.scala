import org.apache.spark.sql.SparkSession

/** The kernel density score as Scala UDFs: as in the TensorFrames talk, and with arrays and while loops throughout. */
object Kde extends Serializable {
  def register(spark: SparkSession, given: Array[Double]): Unit = {
    val points: Seq[Double] = given.toVector
    val n = given.length
    val b = 0.5

    val plain = (x: Double) => {
      val distances = points.map { z => -(x - z) * (x - z) / (2 * b * b) }
      val most = distances.max
      val exps = distances.map(d => math.exp(d - most))
      most - math.log(b * n) + math.log(exps.sum)
    }

    val optimised = (x: Double) => {
      val distances = new Array[Double](n)
      var most = Double.NegativeInfinity
      var i = 0
      while (i < n) {
        val away = x - given(i)
        val d = -away * away / (2 * b * b)
        distances(i) = d
        if (d > most) most = d
        i += 1
      }
      var sum = 0.0
      i = 0
      while (i < n) {
        sum += math.exp(distances(i) - most)
        i += 1
      }
      most - math.log(b * n) + math.log(sum)
    }

    spark.udf.register("kde_plain", plain)
    spark.udf.register("kde_optimised", optimised)
  }
}
